from __future__ import annotations

import numpy as np
import pytest

from hybridgen.errors import InternalError
from hybridgen.messages import (
    GrantBlocks,
    JoinBatch,
    RetireSlot,
    RowProgress,
    SlotEvent,
    StepReport,
)
from hybridgen.scheduler.step_batch import StepBatch

FINISHED, STALE, NO_TOKEN = 1, 2, 4


def make(max_rows: int = 4, chunk: int = 8, lanes: int = 2) -> StepBatch:
    return StepBatch(max_rows, 4, chunk, 64, lanes)


def join(slot: int, num_tokens: int, blocks: list[int], epoch: int = 1) -> JoinBatch:
    return JoinBatch(
        slot=slot,
        epoch=epoch,
        detokenizer=slot + 10,
        num_tokens=num_tokens,
        num_cached=0,
        blocks=blocks,
    )


def prefill_all(batch: StepBatch) -> None:
    while (chunk := batch.next_prefill()) is not None:
        batch.prefill_done(chunk)


def started(batch: StepBatch, *rows: tuple[int, int, list[int]]) -> StepBatch:
    for slot, num_tokens, blocks in rows:
        batch.join(join(slot, num_tokens, blocks))
    prefill_all(batch)
    batch.apply([(50 + header.slot, 0) for header in batch.row_headers()])
    return batch


def report(batch: StepBatch) -> StepReport:
    found = batch.take_report(1)
    assert found is not None
    return found


def test_prompts_take_turns_chunk_by_chunk() -> None:
    batch = make()
    batch.join(join(0, 19, [0, 1, 2, 3, 4]))
    batch.join(join(1, 9, [5, 6, 7]))
    seen = []
    while (chunk := batch.next_prefill()) is not None:
        seen.append((chunk.slot, chunk.start, chunk.stop, chunk.logits_row))
        batch.prefill_done(chunk)
    assert seen == [(0, 0, 8, -1), (1, 0, 8, -1), (0, 8, 16, -1), (1, 8, 9, 0), (0, 16, 19, 1)]


def test_a_budget_shortens_a_chunk() -> None:
    batch = make()
    batch.join(join(0, 19, [0, 1, 2, 3, 4]))
    chunk = batch.next_prefill(3)
    assert chunk is not None
    assert (chunk.start, chunk.stop) == (0, 3)


def test_the_last_chunk_gives_a_row_at_the_position_after_the_prompt() -> None:
    batch = make()
    batch.join(join(3, 5, [7, 8], epoch=9))
    prefill_all(batch)
    (header,) = batch.row_headers()
    assert (header.slot, header.epoch, header.position, header.detokenizer) == (3, 9, 5, 13)
    batch.apply([(42, 0)])
    rows = batch.decode_rows()
    assert rows.ids.tolist() == [42]
    assert rows.positions.tolist() == [5]
    assert rows.block_tables[0, :3].tolist() == [7, 8, 0]
    assert report(batch).prefilled == [SlotEvent(3, 9)]


def test_each_step_moves_every_row_by_one() -> None:
    batch = started(make(), (0, 3, [0, 1, 2]), (1, 5, [3, 4, 5]))
    for step in range(3):
        positions = batch.decode_rows().positions.tolist()
        assert positions == [3 + step, 5 + step]
        headers = batch.row_headers()
        assert [header.position for header in headers] == [4 + step, 6 + step]
        batch.apply([(step, 0), (90 + step, 0)])
    assert batch.decode_rows().ids.tolist() == [2, 92]


def test_rows_are_dealt_evenly_over_live_lanes() -> None:
    batch = started(make(lanes=3), *[(s, 3, [3 * s, 3 * s + 1, 3 * s + 2]) for s in range(4)])
    assert [header.lane for header in batch.row_headers()] == [0, 1, 2, 0]
    batch.apply([(1, 0)] * 4)
    batch.set_live_lanes([2])
    assert [header.lane for header in batch.row_headers()] == [2, 2, 2, 2]


@pytest.mark.parametrize("flags", [FINISHED, STALE | FINISHED, NO_TOKEN | FINISHED])
def test_a_finished_row_leaves_and_the_others_keep_their_state(flags: int) -> None:
    batch = started(make(), *[(s, 3 + s, [4 * s, 4 * s + 1, 4 * s + 2]) for s in range(3)])
    batch.take_report(0)
    batch.row_headers()
    batch.apply([(-1, flags), (71, 0), (72, 0)])
    rows = batch.decode_rows()
    assert sorted(zip(rows.ids.tolist(), rows.positions.tolist(), strict=True)) == [
        (71, 5),
        (72, 6),
    ]
    assert report(batch).finished == [SlotEvent(0, 1)]
    assert batch.num_rows == 2


def test_a_row_without_room_is_held_reported_once_and_goes_on_after_a_grant() -> None:
    batch = started(make(), (0, 3, [5]))  # 4 known tokens fill the only block
    assert report(batch).starving == [RowProgress(0, 1, 3)]
    batch.row_headers()
    batch.apply([(60, 0)])  # 5 tokens known: the last has no block
    assert batch.decode_rows().num_rows == 0
    assert batch.row_headers() == []
    assert batch.is_idle
    assert batch.take_report(2) is None
    batch.grant(GrantBlocks(0, 1, 1, [9, 2]))
    rows = batch.decode_rows()
    assert (rows.ids.tolist(), rows.positions.tolist()) == ([60], [4])
    assert rows.block_tables[0, :3].tolist() == [5, 9, 2]


def test_starving_is_reported_when_less_than_a_block_is_left_and_again_after_a_grant() -> None:
    batch = started(make(), (0, 3, [0, 1]))
    starving = []
    for step in range(3):
        batch.row_headers()
        batch.apply([(step, 0)])
        found = batch.take_report(step)
        starving.append(bool(found and found.starving))
    assert starving == [True, False, False]
    batch.grant(GrantBlocks(0, 1, 2, [2]))
    for step in range(3):
        batch.row_headers()
        batch.apply([(step, 0)])
    assert report(batch).starving == [RowProgress(0, 1, 8)]


def test_a_row_retired_in_mid_step_leaves_after_it() -> None:
    batch = started(make(), (0, 3, [0, 1, 2]), (1, 3, [3, 4, 5]))
    batch.take_report(0)
    headers = batch.row_headers()
    batch.retire(RetireSlot(0, 1))
    batch.retire(RetireSlot(0, 1))
    assert batch.take_report(1) is None
    batch.apply([(header.slot, 0) for header in headers])
    assert report(batch).retired == [SlotEvent(0, 1)]
    assert batch.decode_rows().ids.tolist() == [1]


def test_a_row_retired_while_its_last_chunk_runs_keeps_its_logits_row() -> None:
    batch = make()
    batch.join(join(0, 3, [0]))
    batch.join(join(1, 3, [1]))
    first = batch.next_prefill()
    assert first is not None
    batch.retire(RetireSlot(0, 1))
    batch.prefill_done(first)
    prefill_all(batch)
    assert [header.slot for header in batch.row_headers()] == [0, 1]
    batch.apply([(7, 0), (8, 0)])
    found = report(batch)
    assert found.retired == [SlotEvent(0, 1)]
    assert found.prefilled == [SlotEvent(1, 1)]
    assert batch.decode_rows().ids.tolist() == [8]


def test_retiring_an_unknown_row_is_answered() -> None:
    batch = make()
    batch.retire(RetireSlot(2, 5))
    assert report(batch).retired == [SlotEvent(2, 5)]


def test_a_repeated_join_changes_nothing_but_the_detokenizer() -> None:
    batch = started(make(), (0, 3, [0, 1, 2]))
    batch.join(
        JoinBatch(slot=0, epoch=1, detokenizer=77, num_tokens=3, num_cached=0, blocks=[0, 1, 2])
    )
    (header,) = batch.row_headers()
    assert (header.position, header.detokenizer) == (4, 77)
    assert batch.num_rows == 1


def test_a_join_of_another_occupant_replaces_the_row() -> None:
    batch = started(make(), (0, 3, [0, 1, 2]))
    batch.join(join(0, 2, [3], epoch=2))
    prefill_all(batch)
    assert [(header.epoch, header.position) for header in batch.row_headers()] == [(2, 2)]


def test_a_rejoin_with_other_blocks_starts_over() -> None:
    batch = started(make(), (0, 3, [0, 1, 2]))
    batch.join(join(0, 4, [6, 7, 8]))
    chunk = batch.next_prefill()
    assert chunk is not None
    assert (chunk.start, chunk.stop, chunk.blocks.tolist()) == (0, 4, [6, 7, 8])


def test_a_join_that_does_not_fit_is_an_internal_error() -> None:
    batch = make(max_rows=1)
    with pytest.raises(InternalError):
        batch.join(join(0, 65, [0, 1]))
    batch.join(join(0, 8, [0, 1]))
    with pytest.raises(InternalError):
        batch.join(join(1, 1, [2]))


def test_rows_tell_what_is_computed_in_every_phase() -> None:
    batch = started(make(), (0, 3, [0, 1, 2]), (1, 3, [3]))
    batch.row_headers()
    batch.apply([(5, 0), (6, 0)])  # slot 1 has 5 tokens and one block: held
    batch.join(join(2, 12, [4, 5, 6]))
    chunk = batch.next_prefill()
    assert chunk is not None
    batch.prefill_done(chunk)
    found = {row.slot: (row.num_computed, row.blocks) for row in batch.rows()}
    assert found == {0: (4, [0, 1, 2]), 1: (4, [3]), 2: (8, [4, 5, 6])}


def test_apply_refuses_another_number_of_results() -> None:
    batch = started(make(), (0, 3, [0, 1, 2]))
    batch.row_headers()
    with pytest.raises(InternalError):
        batch.apply([(1, 0), (2, 0)])


def test_records_are_the_bytes_of_the_headers() -> None:
    batch = started(make(), (0, 3, [0, 1, 2]), (3, 4, [3, 4, 5]))
    records = batch.row_records().copy()
    assert records.itemsize == 32
    batch.apply_arrays(np.array([1, 2], np.int32), np.zeros(2, np.uint32))
    again = batch.row_headers()
    for record, header in zip(records.tolist(), again, strict=True):
        slot, lane, epoch, position, detokenizer, flags = record
        assert (slot, lane, epoch, position + 1, detokenizer, flags) == tuple(header)


def test_a_prompt_is_computed_from_where_the_cache_ends_and_its_progress_is_told() -> None:
    batch = make()
    order = JoinBatch(0, 1, 10, num_tokens=19, num_cached=8, blocks=[5, 6, 0, 1, 2])
    batch.join(order)
    first = batch.next_prefill()
    assert first is not None
    assert (first.start, first.stop) == (8, 16)
    batch.prefill_done(first)
    assert report(batch).advanced == [RowProgress(0, 1, 16)]
    prefill_all(batch)
    found = report(batch)
    assert (found.advanced, found.prefilled) == ([], [SlotEvent(0, 1)])


def test_a_prompt_goes_as_far_as_its_blocks_and_on_after_a_grant() -> None:
    batch = make()
    batch.join(join(0, 11, [0]))
    assert _spans(batch) == [(0, 4)]
    assert report(batch).advanced == [RowProgress(0, 1, 4)]
    assert batch.row_headers() == []
    assert batch.is_idle
    batch.grant(GrantBlocks(0, 1, 1, [7, 8]))
    assert _spans(batch) == [(4, 11)]
    assert len(batch.row_headers()) == 1


def _spans(batch: StepBatch) -> list[tuple[int, int]]:
    spans = []
    while (chunk := batch.next_prefill()) is not None:
        spans.append((chunk.start, chunk.stop))
        batch.prefill_done(chunk)
    return spans
