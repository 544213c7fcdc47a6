"""A whole step, from the segments back into them."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.ipc.slot_table import Finish, RowError, SlotWord
from hybridgen.request import FinishReason, SamplingParams
from tests.sampling.rows import Row
from tests.sampling.step_fixture import EOS, MAX_MODEL_LEN, VOCAB, Segments, peaked

GREEDY = SamplingParams(temperature=0.0)
NO_TOKEN = RowFlag.FINISHED | RowFlag.NO_TOKEN
NOTHING = Finish(FinishReason.NONE, RowError.OK, 0)


def test_a_step_writes_tokens_counts_results_and_done():
    s = Segments()
    s.open_slot(1, [5, 6, 7], GREEDY)
    s.open_slot(4, [8], GREEDY)
    s.publish(1, [s.row(1), s.row(4)], peaked(20, 30))
    assert s.sample(1) == (2, 2, 1 << 1 | 1 << 4, 0, 0)
    assert (s.output(1), s.output(4)) == ([20], [30])
    assert s.sampled.results(1, 2) == [(20, 0), (30, 0)]
    assert s.sampled.done(1, 0) == 1
    assert s.finish(1) == NOTHING


def test_steps_follow_each_other_around_the_ring():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    for step in range(1, 9):
        s.publish(step, [s.row(0)], peaked(40 + step))
        assert s.sample(step)[1] == 1
        assert s.sampled.done(step, 0) == step
    assert s.output(0) == [40 + step for step in range(1, 9)]


def test_a_lane_does_only_its_own_rows():
    s = Segments(num_lanes=2)
    s.open_slot(0, [5], GREEDY)
    s.open_slot(1, [5], GREEDY)
    s.publish(1, [s.row(0, lane=0), s.row(1, lane=1)], peaked(20, 30))
    assert s.sample(1, lane=1) == (1, 1, 1 << 1, 0, 0)
    assert (s.output(0), s.output(1)) == ([], [30])
    assert (s.sampled.done(1, 0), s.sampled.done(1, 1)) == (0, 1)
    s.sample(1, lane=0)
    assert s.sampled.results(1, 2) == [(20, 0), (30, 0)]


def test_a_lane_without_rows_is_done_at_once():
    s = Segments(num_lanes=2)
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0, lane=0)], peaked(20))
    assert s.sample(1, lane=1) == (0, 0, 0, 0, 0)
    assert s.sampled.done(1, 1) == 1


@pytest.mark.parametrize("ending", [EOS, 77])
def test_end_of_text_and_stop_ids_finish_with_stop(ending):
    s = Segments()
    s.open_slot(0, [5], SamplingParams(temperature=0.0, stop_token_ids=(77,)))
    s.publish(1, [s.row(0)], peaked(ending))
    s.sample(1)
    assert s.output(0) == [ending]
    assert s.sampled.results(1, 1) == [(ending, RowFlag.FINISHED)]
    assert s.finish(0) == Finish(FinishReason.STOP, RowError.OK, 1)


def test_ignore_eos_goes_on_after_end_of_text():
    s = Segments()
    s.open_slot(0, [5], SamplingParams(temperature=0.0, ignore_eos=True))
    s.publish(1, [s.row(0)], peaked(EOS))
    s.sample(1)
    assert s.output(0) == [EOS]
    assert s.finish(0) == NOTHING


def test_min_tokens_keeps_a_request_from_stopping_early():
    s = Segments()
    s.open_slot(0, [5], SamplingParams(temperature=0.0, min_tokens=2))
    for step in (1, 2, 3):
        s.publish(step, [s.row(0)], peaked(EOS))
        s.sample(step)
    assert EOS not in s.output(0)[:2]
    assert s.finish(0) == Finish(FinishReason.STOP, RowError.OK, 3)


@pytest.mark.parametrize("max_len", [5, MAX_MODEL_LEN])
def test_the_token_that_fills_the_budget_finishes_with_length(max_len):
    s = Segments()
    prompt = list(range(3, max_len + 1))
    s.open_slot(0, prompt, GREEDY, max_len)
    for step in (1, 2):
        assert s.finish(0) == NOTHING
        s.publish(step, [s.row(0)], peaked(20))
        s.sample(step)
    assert s.sampled.results(2, 1) == [(20, RowFlag.FINISHED)]
    assert s.finish(0) == Finish(FinishReason.LENGTH, RowError.OK, 2)


def test_stop_wins_over_length_for_the_last_token():
    s = Segments()
    s.open_slot(0, [5], GREEDY, max_len=2)
    s.publish(1, [s.row(0)], peaked(EOS))
    s.sample(1)
    assert s.finish(0).reason == FinishReason.STOP


def test_a_row_of_an_earlier_occupant_is_stale_and_writes_nothing_of_the_slot():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0, epoch=7)], peaked(20))
    _, *untouched = s.snapshot()
    assert s.sample(1) == (1, 0, 0, 1, 0)
    assert s.snapshot()[1:] == tuple(untouched)
    assert s.sampled.results(1, 1) == [(-1, RowFlag.STALE | RowFlag.FINISHED)]


def test_a_matched_stop_string_ends_the_row_without_a_token():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0)], peaked(20))
    s.sample(1)
    s.slots.store(0, SlotWord.STOP, 2)
    s.slots.store(0, SlotWord.END_REASON, FinishReason.CANCELLED)
    s.publish(2, [s.row(0)], peaked(21))
    assert s.sample(2) == (1, 0, 1, 0, 0)
    assert s.output(0) == [20]
    assert s.sampled.results(2, 1) == [(-1, NO_TOKEN)]
    assert s.finish(0) == Finish(FinishReason.STOP_STRING, RowError.OK, 1)


def test_an_end_from_outside_ends_the_row_without_a_token():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.slots.store(0, SlotWord.END_REASON, FinishReason.CANCELLED)
    s.publish(1, [s.row(0)], peaked(20))
    s.sample(1)
    assert s.sampled.results(1, 1) == [(-1, NO_TOKEN)]
    assert s.finish(0) == Finish(FinishReason.CANCELLED, RowError.OK, 0)


def test_invalid_logits_end_that_row_and_no_other():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.open_slot(1, [5], GREEDY)
    logits = peaked(20, 30)
    logits[0, 123] = np.nan
    s.publish(1, [s.row(0), s.row(1)], logits)
    assert s.sample(1) == (2, 1, 0b11, 0, 1)
    assert s.sampled.results(1, 2) == [(-1, NO_TOKEN), (30, 0)]
    assert s.finish(0) == Finish(FinishReason.ERROR, RowError.INVALID_LOGITS, 0)


def test_a_wasted_step_after_the_end_changes_nothing():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0)], peaked(EOS))
    s.sample(1)
    s.publish(2, [s.row(0)], peaked(20))
    _, *untouched = s.snapshot()
    s.sample(2)
    assert s.snapshot()[1:] == tuple(untouched)
    assert s.sampled.results(2, 1) == [(-1, NO_TOKEN)]


def test_a_repeated_step_returns_the_published_token_even_from_other_logits():
    s = Segments()
    s.open_slot(0, [5], SamplingParams(seed=4, logprobs=2))
    row = s.row(0)
    s.publish(1, [row], np.zeros((1, VOCAB), np.float32))
    s.sample(1)
    (token_id, flags), before = s.sampled.results(1, 1)[0], s.snapshot()
    s.publish(2, [row], peaked((token_id + 1) % VOCAB))
    assert s.sample(2)[1] == 0
    assert s.sampled.results(2, 1) == [(token_id, flags)]
    assert s.snapshot()[1:] == before[1:]


def test_a_sampler_that_died_before_publishing_the_last_token_is_made_good():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0)], peaked(EOS))
    s.sample(1)
    complete = s.snapshot()
    s.slots.store(0, SlotWord.GENERATED, 0)  # it died after `finish`, before `generated`
    s.sampled.write_result(1, 0, 0)
    s.sample(1)
    assert s.snapshot() == complete


def test_logprob_records_hold_what_the_row_kernel_gives():
    s = Segments()
    params = SamplingParams(seed=9, logprobs=5, temperature=1.2)
    s.open_slot(3, [5, 6], params)
    logits = np.random.default_rng(2).normal(0, 2, (1, VOCAB)).astype(np.float32)
    s.publish(1, [s.row(3)], logits)
    s.sample(1)
    token_id, _, logprob, top = Row(logits[0], params, [5, 6], 2, (EOS,)).kernel()
    record = s.logprobs.read(3, 0)
    assert (record.token_id, record.logprob, record.top) == (token_id, logprob, top)
    assert struct.unpack_from("=iIf", s.sampled.raw(1, 1)) == (token_id, 0, logprob)


def test_without_logprobs_no_record_is_written():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    before = bytes(s.logprobs.buf)
    s.publish(1, [s.row(0)], peaked(20))
    s.sample(1)
    assert bytes(s.logprobs.buf) == before
    assert math.isnan(struct.unpack_from("=iIf", s.sampled.raw(1, 1))[2])


def test_tokens_do_not_depend_on_the_company_of_a_row():
    logits = np.random.default_rng(5).normal(0, 2, (6, VOCAB)).astype(np.float32)
    params = [SamplingParams(seed=slot, repetition_penalty=1.3) for slot in range(6)]
    alone = []
    for slot in range(6):
        s = Segments()
        s.open_slot(slot, [slot, slot + 1], params[slot])
        s.publish(1, [s.row(slot)], logits[slot : slot + 1])
        s.sample(1)
        alone.append(s.output(slot))
    s = Segments()
    for slot in range(6):
        s.open_slot(slot, [slot, slot + 1], params[slot])
    s.publish(1, [s.row(slot) for slot in range(6)], logits)
    s.sample(1)
    assert [s.output(slot) for slot in range(6)] == alone


def test_a_poisoned_lane_does_nothing_and_stays_poisoned():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0)], peaked(20))
    s.sampled.mark_poisoned(1, 0)
    before = s.snapshot()
    assert s.sample(1) == (0, 0, 0, 0, 0)
    assert s.snapshot() == before


def test_rows_that_do_not_fit_their_slots_are_refused_before_anything_is_written():
    s = Segments()
    s.open_slot(0, [5, 6], GREEDY)
    good = s.row(0)
    for bad in (
        good._replace(slot=8),
        good._replace(position=MAX_MODEL_LEN),
        good._replace(position=1),  # inside the prompt
        good._replace(position=4),  # a token is missing before it
    ):
        s.publish(1, [good, bad], peaked(20, 21))
        before = s.snapshot()
        with pytest.raises(ValueError, match="does not fit its slot"):
            s.sample(1)
        assert s.snapshot() == before


def test_a_step_or_lane_that_is_not_there_is_refused():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0)], peaked(20))
    for step, lane in ((0, 0), (2, 0), (4, 0), (1, 1)):
        with pytest.raises(ValueError, match="not there to sample"):
            s.sample(step, lane)


def test_buffers_in_the_wrong_order_or_too_short_are_refused():
    s = Segments()
    s.publish(1, [], peaked())
    s.slots, s.tokens = s.tokens, s.slots
    with pytest.raises(ValueError, match="slots buffer"):
        s.sample(1)
    s = Segments()
    s.logits.buf = bytearray(s.logits.buf[:-64])
    with pytest.raises(ValueError, match="geometries"):
        s.sample(1)
