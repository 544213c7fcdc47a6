"""Rows whose tokens attend to a window only: what they hold, and what becomes of the rest."""

from __future__ import annotations

import random

import pytest

from hybridgen.messages import BatchRow, GrantBlocks, JoinBatch, RowProgress, SlotEvent, StepReport
from hybridgen.request import IdsPrompt
from tests.support.scheduler_stage import SchedulerStage
from tests.support.simulated_tree import SimulatedTree

WINDOW = 32
MOST = 2 + 4 + 2  # blocks: window, piece, and the two that are cut


def stage_of(**options: object) -> SchedulerStage:
    defaults = {"kept_window": WINDOW, "max_model_len": 1024}
    return SchedulerStage(**{**defaults, **options})  # type: ignore[arg-type]  # mixed options


def num_taken(stage: SchedulerStage) -> int:
    report = stage.scheduler.health()
    return report.num_blocks - report.num_free_blocks


def advance(stage: SchedulerStage, row: SlotEvent, num_tokens: int) -> None:
    progress = RowProgress(row.slot, row.epoch, num_tokens)
    stage.fact(StepReport(step=1, advanced=[progress]))


def join(stage: SchedulerStage, num_tokens: int) -> JoinBatch:
    stage.submit()
    stage.encode_all(num_tokens)
    (order,) = stage.pop(JoinBatch)
    return order


def test_a_long_prompt_joins_with_a_window_and_a_piece_and_is_granted_the_rest_on_its_way() -> None:
    stage = stage_of()
    order = join(stage, 600)
    assert (order.num_tokens, len(order.blocks), num_taken(stage)) == (600, MOST, MOST)
    row, table = SlotEvent(order.slot, order.epoch), list(order.blocks)
    for num_tokens in range(64, 600, 64):
        advance(stage, row, num_tokens)
        for grant in stage.pop(GrantBlocks):
            assert grant.first == len(table)
            table += grant.blocks
        assert min(num_tokens + 64, 600) <= 16 * len(table)
        assert num_taken(stage) <= MOST
    assert 16 * len(table) > 600
    assert len(set(table[-4:])) == 4


def test_a_decoding_row_gives_back_what_is_out_of_its_window() -> None:
    stage = stage_of()
    stage.submit()
    row = stage.run(100)
    assert num_taken(stage) < MOST
    table_length = 8
    for num_tokens in range(16 * table_length - 16, 1000, 32):
        stage.starve(row, num_tokens)
        (grant,) = stage.pop(GrantBlocks)
        assert (grant.first, len(grant.blocks)) == (table_length, 2)
        table_length += 2
        assert num_taken(stage) <= MOST


def test_a_request_fits_whatever_its_length_where_a_window_and_a_piece_fit() -> None:
    stage = stage_of(num_blocks=MOST)
    assert len(join(stage, 900).blocks) == MOST
    stage = stage_of(num_blocks=MOST - 1)
    stage.submit()
    stage.encode_all(900)
    stage.text_finished(SlotEvent(0, 1), 0)
    assert stage.codes() == ["context_length_exceeded"]


def test_a_new_coscheduler_tells_held_blocks_from_those_given_to_others() -> None:
    stage = stage_of(num_slots=2, num_blocks=20)
    stage.submit()
    stage.submit()
    first, second = stage.encode_all(200)
    stage.restart()
    # The first row's table begins with blocks that the second has by now.
    table = [*range(10), 10, 11]
    rows = [BatchRow(*_key(first), 175, table), BatchRow(*_key(second), 40, [*range(7), 12])]
    stage.attach_all(rows=rows)
    assert num_taken(stage) == 12 - 8 + 8
    stage.fact(StepReport(step=1, retired=[first]))
    stage.cancel((1).to_bytes(16, "big"))
    stage.fact(StepReport(step=2, retired=[first]))
    assert num_taken(stage) == 8


def test_a_foreign_row_gives_back_only_what_it_holds() -> None:
    stage = stage_of(num_blocks=20, has_workers=False)
    stage.attach_all(rows=[BatchRow(3, 9, 100, list(range(8)))])
    assert num_taken(stage) == 8 - 3
    stage.fact(StepReport(step=1, retired=[SlotEvent(3, 9)]))
    assert num_taken(stage) == 0


def test_what_a_row_joined_with_is_shared_and_only_the_window_of_it_is_held() -> None:
    stage = stage_of(has_tokens=True, num_slots=2)
    ids = [7 + index % 50 for index in range(300)]
    stage.submit(IdsPrompt(ids))
    stage.encode_all_ids()
    (order,) = stage.pop(JoinBatch)
    row = SlotEvent(order.slot, order.epoch)
    for num_tokens in range(64, 300, 64):
        advance(stage, row, num_tokens)
    before = num_taken(stage)
    stage.submit(IdsPrompt(ids))
    stage.encode_all_ids()
    (second,) = stage.pop(JoinBatch)
    assert second.blocks[:MOST] == order.blocks
    assert second.num_cached == MOST * 16
    assert num_taken(stage) - before <= MOST


def test_what_hangs_below_a_lost_block_is_not_shared() -> None:
    stage = stage_of(has_tokens=True, num_slots=2, num_blocks=2 * MOST + 1)
    ids = [7 + index % 50 for index in range(300)]
    stage.submit(IdsPrompt(ids))
    stage.encode_all_ids()
    (order,) = stage.pop(JoinBatch)
    row = SlotEvent(order.slot, order.epoch)
    for num_tokens in range(64, 300, 64):
        advance(stage, row, num_tokens)
    stage.submit(IdsPrompt([3] * 300))  # takes what the first gave back
    stage.encode_all_ids()
    (other,) = stage.pop(JoinBatch)
    assert set(other.blocks) & set(order.blocks)
    stage.cancel((1).to_bytes(16, "big"))
    stage.fact(StepReport(step=9, retired=[row]))
    stage.text_finished(row, 0)
    stage.advance(100.0)
    stage.submit(IdsPrompt(ids))
    stage.encode_all_ids()
    stage.cancel((2).to_bytes(16, "big"))
    stage.fact(StepReport(step=10, retired=[SlotEvent(other.slot, other.epoch)]))
    (again,) = stage.pop(JoinBatch)
    assert again.num_cached == 0


# --- whole trees ----------------------------------------------------------------------------------


def load(tree: SimulatedTree, num_requests: int, *, is_alike: bool = False) -> None:
    draw = tree.random
    for _ in range(num_requests):
        ids = [draw.randrange(1, 97) for _ in range(draw.randrange(1, 90))]
        if is_alike:
            num_alike = min(draw.randrange(60), len(ids) // 2)
            ids[:num_alike] = range(5, 5 + num_alike)
        tree.submit(ids, max_tokens=draw.choice([None, 1, 12, 60]))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("num_blocks", [9, 14, 40])
def test_long_rows_hold_a_window_and_a_piece_and_no_block_has_two_owners(
    seed: int, num_blocks: int
) -> None:
    tree = SimulatedTree(seed, kept_window=12, max_model_len=160, num_blocks=num_blocks)
    assert tree.window.most_blocks <= 12 // 4 + 6 // 4 + 1 + 2
    load(tree, 10, is_alike=seed % 2 == 1)
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()
    assert all(asked.is_natural for asked in tree.asked.values())
    assert 0 < tree.gpu.most_held <= tree.window.most_blocks


@pytest.mark.parametrize("is_killing", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_kills_or_cancels_change_no_text_and_lose_no_block(seed: int, is_killing: bool) -> None:
    tree = SimulatedTree(seed, kept_window=12, max_model_len=160, num_blocks=18)
    draw = random.Random(seed + 1000)
    for _ in range(12):
        load(tree, draw.randrange(3), is_alike=draw.random() < 0.5)
        tree.run(draw.randrange(200))
        match draw.randrange(4):
            case 0 | 1 if is_killing:
                tree.kill_coscheduler()
            case 2 if is_killing:
                tree.kill_worker("gpu-0")
            case 0 | 1 if tree.asked:
                tree.cancel(draw.choice(list(tree.asked)))
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()


def _key(row: SlotEvent) -> tuple[int, int]:
    return row.slot, row.epoch
