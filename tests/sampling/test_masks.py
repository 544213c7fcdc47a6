"""Rows whose grammar allows only some ids, against the oracle that never sees the others."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from hybridgen.ipc.logit_ring import RowHas
from hybridgen.ipc.slot_table import RowError, SlotWord
from hybridgen.request import FinishReason, Grammar, SamplingParams
from hybridgen.sampling import _native, reference
from tests.sampling.cut_oracle import make_cut
from tests.sampling.rows import VARIANTS, Row, random_row
from tests.sampling.step_fixture import EOS, VOCAB, Segments, peaked

ANY = SamplingParams(temperature=0.0, grammar=Grammar("regex", ".*"))
PROMPT = [5, 6, 7]


def bits_of(*ids: int, vocab: int = VOCAB) -> bytes:
    allowed = np.zeros(-(-vocab // 64) * 64, bool)
    allowed[list(ids)] = True
    return np.packbits(allowed, bitorder="little").tobytes()


def masked_token(row: Row, ids: list[int], variant: int = 0) -> int:
    history = np.asarray(row.history, np.int32)
    mask = bits_of(*ids, vocab=len(row.logits))
    arguments = (row.logits, row.packed(), history, row.prompt_len, variant, mask)
    return _native.sample_row(*arguments)[0]


def oracle_token(row: Row, ids: list[int]) -> int | None:
    if not reference.is_valid(row.logits):
        return None
    logits = np.full_like(row.logits, -np.inf)
    logits[ids] = row.logits[ids]
    return dataclasses.replace(row, logits=logits).oracle().token_id


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_masked_row_gives_the_token_of_the_row_that_lacks_the_other_ids(variant: int) -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        vocab = int(rng.choice([5, 64, 100, 257, 5000]))
        row = random_row(rng, vocab)
        row = dataclasses.replace(row, params=_without_min_tokens(row.params))
        share = rng.choice([0.01, 0.5, 0.99])
        ids = np.flatnonzero(rng.random(vocab) < share).tolist() or [0]
        expected = oracle_token(row, ids)
        assert masked_token(row, ids, variant) == (-1 if expected is None else expected)


def _without_min_tokens(params: SamplingParams) -> SamplingParams:
    return SamplingParams(
        **{key: getattr(params, key) for key in params.__struct_fields__ if key != "min_tokens"}
    )


def test_log_probabilities_are_those_of_the_row_as_the_model_gave_it() -> None:
    logits = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    row = Row(logits, SamplingParams(temperature=0.0, logprobs=1))
    history = np.zeros(0, np.int32)
    token, _, logprob, top = _native.sample_row(
        logits, row.packed(), history, 0, 0, bits_of(0, 1, vocab=4)
    )
    total = math.log(sum(math.exp(value) for value in range(4)))
    assert token == 1
    assert logprob == pytest.approx(1 - total)
    assert top == [(3, pytest.approx(3 - total))]


def test_a_bias_does_not_bring_back_what_the_grammar_forbids() -> None:
    row = Row(np.zeros(8, np.float32), SamplingParams(temperature=0.0, logit_bias={3: 100.0}))
    assert masked_token(row, [5, 6]) == 5


def test_min_tokens_gives_way_when_only_the_end_is_left() -> None:
    row = Row(np.zeros(8, np.float32), SamplingParams(temperature=0.0, min_tokens=9), eos_ids=(2,))
    assert masked_token(row, [2, 5]) == 5
    assert masked_token(row, [2]) == 2


def test_a_row_with_nothing_finite_left_is_invalid() -> None:
    logits = np.array([-np.inf, 1.0], np.float32)
    assert masked_token(Row(logits, SamplingParams(temperature=0.0)), [0]) == -1


def test_a_mask_that_is_too_short_is_refused() -> None:
    row = Row(np.zeros(100, np.float32), SamplingParams())
    with pytest.raises(ValueError, match="mask"):
        _native.sample_row(row.logits, row.packed(), np.zeros(0, np.int32), 0, 0, bytes(8))


# --- lanes ---------------------------------------------------------------------------------------


def lane_of(s: Segments) -> _native.Lane:
    views = (s.logits, s.sampled, s.slots, s.tokens, s.logprobs)
    return _native.Lane(*(view.buf for view in views), 0)


def one_row() -> tuple[Segments, _native.Lane]:
    s = Segments()
    s.open_slot(1, PROMPT, ANY)
    s.publish(1, [s.row(1)], peaked(9))
    return s, lane_of(s)


def test_a_row_is_left_until_its_mask_is_there() -> None:
    s, lane = one_row()
    report = lane.next_step(0, 0, 0)[2]
    assert report[7:] == (1, 0, 1)
    assert lane.rest_of_step(1)[7:] == (1, 0, 1)
    assert s.sampled.done(1, 0) == 0
    assert lane.due_masks(1) == [(1, 101, 3)]
    lane.set_mask(1, 101, 3, bits_of(30, 40))
    assert lane.rest_of_step(1)[7:] == (0, 0, 0)
    assert s.sampled.done(1, 0) == 1
    assert s.output(1)[0] in (30, 40)


def test_the_mask_of_the_next_token_is_due_once_the_step_is_done() -> None:
    s, lane = one_row()
    lane.set_mask(1, 101, 3, bits_of(9))
    lane.next_step(0, 0, 0)
    assert s.output(1) == [9]
    assert lane.due_masks(1) == [(1, 101, 4)]
    lane.set_mask(1, 101, 4, bits_of(10))
    assert lane.due_masks(1) == []


def test_masks_that_rows_wait_for_are_due_before_the_next_ones() -> None:
    s = Segments()
    for slot in (1, 2):
        s.open_slot(slot, PROMPT, ANY)
    s.publish(1, [s.row(1), s.row(2)], peaked(9, 9))
    lane = lane_of(s)
    lane.set_mask(1, 101, 3, bits_of(9))
    lane.next_step(0, 0, 0)
    assert lane.due_masks(1) == [(2, 102, 3)]


def test_rows_without_a_grammar_do_not_wait_for_those_with_one() -> None:
    s = Segments()
    s.open_slot(1, PROMPT, ANY)
    s.open_slot(2, PROMPT, SamplingParams(temperature=0.0))
    s.publish(1, [s.row(1), s.row(2)], peaked(9, 8))
    lane_of(s).next_step(0, 0, 0)
    assert (s.output(1), s.output(2)) == ([], [8])


@pytest.mark.parametrize("place", [(2, 101, 3), (1, 100, 3), (1, 101, 4)])
def test_a_mask_of_another_slot_occupant_or_position_does_not_count(
    place: tuple[int, int, int],
) -> None:
    s, lane = one_row()
    lane.set_mask(*place, bits_of(9))
    lane.next_step(0, 0, 0)
    assert s.output(1) == []


def test_a_grammar_that_cannot_go_on_ends_the_row_with_its_own_error() -> None:
    s, lane = one_row()
    lane.set_mask(1, 101, 3, None)
    lane.next_step(0, 0, 0)
    assert s.finish(1) == (FinishReason.ERROR, RowError.GRAMMAR_SPENT, 0)
    assert RowError.GRAMMAR_SPENT.exception().http_status == 400
    assert lane.due_masks(1) == []


def test_nothing_is_due_for_a_row_that_has_ended() -> None:
    s, lane = one_row()
    lane.set_mask(1, 101, 3, bits_of(EOS))
    lane.next_step(0, 0, 0)
    assert s.finish(1).reason is FinishReason.STOP
    assert lane.due_masks(1) == []


def test_nothing_is_due_for_a_row_that_is_to_end() -> None:
    s, lane = one_row()
    s.slots.store(1, SlotWord.END_REASON, FinishReason.CANCELLED)
    lane.next_step(0, 0, 0)
    assert s.finish(1).reason is FinishReason.CANCELLED
    assert lane.due_masks(1) == []


def test_nothing_is_due_for_a_step_that_is_not_there() -> None:
    _, lane = one_row()
    assert lane.due_masks(7) == []


def test_a_cut_does_not_answer_a_row_with_a_grammar() -> None:
    s = Segments(cut_capacity=64)
    s.open_slot(1, PROMPT, ANY)
    rows = peaked(9)
    s.publish_cuts(1, [s.row(1)._replace(flags=RowHas.CUT)], [make_cut(rows[0], 0.0, 1, 64)])
    lane = lane_of(s)
    lane.set_mask(1, 101, 3, bits_of(40))
    lane.next_step(0, 0, 0)
    assert s.output(1) == []
    s.complete(1, rows)
    lane.rest_of_step(1)
    assert s.output(1) == [40]


def test_a_slot_that_is_not_there_is_refused() -> None:
    _, lane = one_row()
    with pytest.raises(ValueError, match="slot 8"):
        lane.set_mask(8, 1, 1, b"")
