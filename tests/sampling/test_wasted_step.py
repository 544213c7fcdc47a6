"""A device enqueues a step before it knows that a row of the last one was the end."""

from __future__ import annotations

import pytest

from hybridgen.ipc.logit_ring import RowHeader
from hybridgen.ipc.sampled_ring import RELEASED, RowFlag
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.request import FinishReason, SamplingParams
from tests.sampling.step_fixture import EOS, Segments, peaked

GREEDY = SamplingParams(temperature=0.0)
NO_TOKEN = RowFlag.FINISHED | RowFlag.NO_TOKEN


def ahead(s: Segments, slot: int, by: int) -> RowHeader:
    row = s.row(slot)
    return row._replace(position=row.position + by)


def test_a_row_beyond_the_last_token_is_finished_and_writes_nothing():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0)], peaked(EOS))
    s.sample(1)
    s.publish(2, [s.row(0)], peaked(40))
    assert s.sample(2)[:2] == (1, 0)
    assert s.sampled.results(2, 1) == [(-1, NO_TOKEN)]
    assert s.output(0) == [EOS]


def test_a_row_beyond_one_that_ended_without_a_token_is_no_error():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.slots.store(0, SlotWord.END_REASON, FinishReason.CANCELLED)
    second = ahead(s, 0, 1)
    s.publish(1, [s.row(0)], peaked(40))
    s.publish(2, [second], peaked(41))
    for step in (1, 2):
        s.sample(step)
        assert s.sampled.results(step, 1) == [(-1, NO_TOKEN)]
    assert s.output(0) == []


@pytest.mark.parametrize("by", [1, 2])
def test_a_row_beyond_one_that_goes_on_is_still_an_error(by):
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [ahead(s, 0, by)], peaked(40))
    with pytest.raises(ValueError, match="does not fit its slot"):
        s.sample(1)


def test_a_released_lane_is_not_done_and_may_still_be_done():
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish(1, [s.row(0)], peaked(40))
    s.sampled.release(1, 0)
    assert s.sampled.done(1, 0) == RELEASED
    assert not s.sampled.wait_done(1, 0, 0, 1)
    s.sample(1)
    assert s.sampled.done(1, 0) == 1
