"""Waiting for a step and sampling it in one call, over segments that were checked once."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

from hybridgen.ipc import _native as _native_ipc
from hybridgen.ipc.logit_ring import POISON, Cut, CutState, LogitRing, RowHas
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.request import Grammar, SamplingParams
from hybridgen.sampling import _native
from tests.sampling.cut_oracle import make_cut
from tests.sampling.step_fixture import Segments, peaked
from tests.support.eventually import eventually

GREEDY = SamplingParams(temperature=0.0)
LONG_US = 10_000_000
DEPTH_OFFSET = 64  # hg_header.geometry[0]
NUM_ROWS_OFFSET = 8  # of a step


def lane_of(s: Segments, index: int = 0) -> _native.Lane:
    views = (s.logits, s.sampled, s.slots, s.tokens, s.logprobs)
    return _native.Lane(*(view.buf for view in views), index)


def opened(num_lanes: int = 1, cut_capacity: int = 0) -> Segments:
    s = Segments(num_lanes, cut_capacity)
    s.open_slot(0, [5], GREEDY)
    return s


def test_a_step_is_sampled_by_the_call_that_finds_it():
    s = opened()
    lane = lane_of(s)
    s.publish(1, [s.row(0)], peaked(20))
    latest, step, (elapsed_ns, *report) = lane.next_step(0, 0, 0)
    assert (latest, step, report) == (1, 1, [1, 1, 1, 0, 0, 0, 0, 0, 0])
    assert elapsed_ns > 0
    assert s.output(0) == [20]
    assert s.sampled.done(1, 0) == 1


def test_without_a_new_step_nothing_is_done():
    s = opened()
    lane = lane_of(s)
    s.publish(1, [s.row(0)], peaked(20))
    assert lane.next_step(1, 0, 100) == (1, 1, (0,) * 10)
    assert s.sampled.done(1, 0) == 0


def test_a_retired_ring_ends_the_wait_with_nothing_done():
    s = opened()
    lane = lane_of(s)
    s.publish(1, [s.row(0)], peaked(20))
    s.logits.poison()
    assert lane.next_step(0, LONG_US, LONG_US) == (POISON, 0, (0,) * 10)
    assert s.sampled.done(1, 0) == 0


def test_steps_that_waited_are_done_one_by_one():
    s = Segments()
    for slot in (0, 1):
        s.open_slot(slot, [5], GREEDY)
        s.publish(slot + 1, [s.row(slot)], peaked(20 + slot))
    lane = lane_of(s)
    assert lane.next_step(0, 0, 0)[:2] == (2, 1)
    assert (s.output(0), s.output(1)) == ([20], [])
    assert lane.next_step(1, 0, 0)[:2] == (2, 2)
    assert s.output(1) == [21]


def test_steps_that_the_ring_has_no_room_for_any_more_are_missed():
    s = opened(num_lanes=2)
    for step in range(1, 9):
        s.publish(step, [s.row(0, lane=1)], peaked(20))
    lane = lane_of(s)
    assert lane.next_step(3, 0, 0)[:2] == (8, 7)
    assert lane.next_step(7, 0, 0)[:2] == (8, 8)
    assert [s.sampled.done(step, 0) for step in (6, 7, 8)] == [0, 7, 8]


@pytest.mark.parametrize("finish", ["mark_done", "release", "mark_poisoned"])
def test_a_step_that_nobody_waits_for_any_more_is_passed_over(finish):
    s = opened()
    lane = lane_of(s)
    s.publish(1, [s.row(0)], peaked(20))
    getattr(s.sampled, finish)(1, 0)
    before = s.snapshot()
    assert lane.next_step(0, 0, 0) == (1, 1, (0,) * 10)
    assert s.snapshot() == before


def test_a_step_whose_place_is_being_reused_is_passed_over():
    s = opened()
    lane = lane_of(s)
    s.publish(1, [s.row(0)], peaked(20))
    s.logits.begin(1 + s.logits.depth)
    before = s.snapshot()
    assert lane.next_step(0, 0, 0) == (1, 1, (0,) * 10)
    assert lane.rest_of_step(1) == (0,) * 10
    assert s.snapshot() == before


def test_a_row_that_fits_no_slot_is_an_error_and_changes_nothing():
    s = opened()
    lane = lane_of(s)
    s.publish(1, [s.row(0)._replace(slot=8)], peaked(20))
    before = s.snapshot()
    with pytest.raises(ValueError, match=r"step 1 cannot be sampled: row 0 .*does not fit"):
        lane.next_step(0, 0, 0)
    with pytest.raises(ValueError, match="step 1 cannot be sampled"):
        lane.rest_of_step(1)
    assert s.snapshot() == before


def test_rows_without_a_cut_are_left_until_they_are_complete():
    s = opened(cut_capacity=8)
    s.open_slot(1, [5], GREEDY)
    lane = lane_of(s)
    cut = Cut(CutState.CANDIDATES, -1, 50.0, 50.0, 0.0, 0.0, 1, (50.0,), (20,))
    s.publish_cuts(1, [s.row(0)._replace(flags=RowHas.CUT), s.row(1)], [cut])
    assert lane.next_step(0, 0, 0)[2][1:] == (1, 1, 1, 0, 0, 1, 1, 0, 0)
    assert lane.rest_of_step(1)[1:] == (0, 0, 0, 0, 0, 0, 1, 0, 0)
    assert s.sampled.done(1, 0) == 0
    s.complete(1, peaked(20, 30))
    assert lane.rest_of_step(1)[1:] == (1, 1, 2, 0, 0, 0, 0, 0, 0)
    assert (s.output(0), s.output(1)) == ([20], [30])
    assert s.sampled.done(1, 0) == 1


class Waiter(threading.Thread):
    """One call of ``next_step`` beside the test."""

    def __init__(self, lane: _native.Lane, spin_us: int) -> None:
        super().__init__()
        self._call = lane.next_step, (0, spin_us, LONG_US)
        self.answers: list[tuple[int, int]] = []
        self.start()

    def run(self) -> None:
        call, arguments = self._call
        self.answers.append(call(*arguments)[:2])

    def is_asleep(self) -> bool:
        stat = Path(f"/proc/self/task/{self.native_id}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "S"


def test_a_host_that_publishes_wakes_a_sleeper():
    s = opened()
    waiter = Waiter(lane_of(s), spin_us=0)
    eventually(waiter.is_asleep, 5.0)
    s.publish(1, [s.row(0)], peaked(20))
    waiter.join(5.0)
    assert waiter.answers == [(1, 1)]
    assert s.output(0) == [20]


def test_a_device_that_wakes_nobody_is_seen_by_who_spins():
    s = opened()
    s.publish(1, [s.row(0)], peaked(20))
    _native_ipc.store(s.logits.buf, s.logits.latest_offset, 0)
    waiter = Waiter(lane_of(s), spin_us=LONG_US)
    _native_ipc.store(s.logits.buf, s.logits.latest_offset, 1)
    waiter.join(5.0)
    assert waiter.answers == [(1, 1)]
    assert s.sampled.done(1, 0) == 1


def test_what_was_checked_cannot_change_under_it():
    s = opened()
    lane = lane_of(s)
    s.publish(1, [s.row(0)], peaked(20))
    struct.pack_into("=Q", s.logits.buf, DEPTH_OFFSET, 0)
    assert lane.next_step(0, 0, 0)[:2] == (1, 1)
    with pytest.raises(ValueError, match="geometries"):
        lane_of(s)


def test_segments_are_held_for_as_long_as_the_lane_is_there():
    s = opened()
    tokens = bytearray(s.tokens.buf)  # of which there is no other view
    segments = (s.logits.buf, s.sampled.buf, s.slots.buf, tokens, s.logprobs.buf)
    lane = _native.Lane(*segments, 0)
    with pytest.raises(BufferError):
        tokens.clear()
    del lane
    with pytest.raises(ValueError, match="lane 1"):
        _native.Lane(*segments, 1)
    tokens.clear()


def test_segments_that_do_not_belong_together_are_refused():
    s = opened()
    views = [s.logits, s.sampled, s.slots, s.tokens, s.logprobs]
    with pytest.raises(ValueError, match="the slots buffer"):
        _native.Lane(*(view.buf for view in [*views[:2], s.tokens, *views[3:]]), 0)
    views[0] = LogitRing.in_memory(2, 6, 300)
    with pytest.raises(ValueError, match="geometries"):
        _native.Lane(*(view.buf for view in views), 0)
    with pytest.raises(BufferError):
        _native.Lane(*(bytes(view.buf) for view in views), 0)


def test_a_lane_that_the_ring_does_not_have_is_refused():
    with pytest.raises(ValueError, match="lane 2; the ring has 2"):
        lane_of(Segments(num_lanes=2), 2)


@pytest.mark.parametrize("times", [(-1, 0), (0, -1), (0, 1 << 62)])
def test_times_that_cannot_be_are_refused(times):
    with pytest.raises(ValueError, match="out of range"):
        lane_of(Segments()).next_step(0, *times)
    with pytest.raises(ValueError, match="out of range"):
        lane_of(Segments()).await_rows(1, *times)


def test_a_lane_waits_for_rows_that_it_left_and_for_no_others() -> None:
    s = Segments(num_lanes=2, cut_capacity=8)
    for slot in range(3):
        s.open_slot(slot, [5], GREEDY)
    rows = [s.row(0, lane=1), s.row(1), s.row(2)._replace(flags=RowHas.CUT)]
    logits = peaked(20, 30, 40)
    cuts = [make_cut(row, 0.0, 3, 8) for row in logits]
    s.publish_cuts(1, rows, cuts)
    lane = lane_of(s)
    assert lane.next_step(0, 0, 0)[2][7] == 1
    assert not lane.await_rows(1, 100, 200)
    s.send_urgent(1, {0: logits[0], 2: logits[2]})  # another lane's, and one that is done
    assert not lane.await_rows(1, 0, 0)
    s.send_urgent(1, {1: logits[1]})
    assert lane.await_rows(1, LONG_US, LONG_US)
    assert lane.rest_of_step(1)[1:3] == (1, 1)
    assert s.output(1) == [30]


def test_complete_rows_end_the_wait_of_every_lane() -> None:
    s = opened(num_lanes=2, cut_capacity=8)
    s.open_slot(1, [5], GREEDY)
    s.publish_cuts(1, [s.row(0), s.row(1, lane=1)], [])
    lanes = [lane_of(s, 0), lane_of(s, 1)]
    for lane in lanes:
        lane.next_step(0, 0, 0)
        assert not lane.await_rows(1, 0, 0)
    s.complete(1, peaked(20, 30))
    for lane in lanes:
        assert lane.await_rows(1, LONG_US, LONG_US)


def test_a_step_that_is_there_no_more_is_not_waited_for_and_has_no_rest() -> None:
    s = opened(cut_capacity=8)
    s.publish_cuts(1, [s.row(0)], [])
    lane = lane_of(s)
    lane.next_step(0, 0, 0)
    s.logits.begin(4)  # in the same place
    for step in (1, 2):
        assert lane.await_rows(step, LONG_US, LONG_US)
        assert lane.rest_of_step(step) == (0,) * 10


def test_a_step_that_was_damaged_while_rows_were_left_is_refused_at_once() -> None:
    s = opened(cut_capacity=8)
    s.publish_cuts(1, [s.row(0)], [])
    lane = lane_of(s)
    lane.next_step(0, 0, 0)
    _native_ipc.store(s.logits.buf, s.logits.ready_offset(1) + NUM_ROWS_OFFSET, 1 << 40)
    assert lane.await_rows(1, LONG_US, LONG_US)
    with pytest.raises(ValueError, match="step 1 cannot be sampled"):
        lane.rest_of_step(1)


def test_urgent_rows_are_done_beside_those_that_wait_for_something_else() -> None:
    s = Segments(cut_capacity=8)
    for slot in range(3):
        s.open_slot(slot, [5], GREEDY)
    s.open_slot(3, [5], SamplingParams(grammar=Grammar("regex", "[0-9]+")))
    early = s.row(2)._replace(position=2)  # another lane has yet to write the token before
    logits = peaked(20, 30, 40, 50)
    s.publish_cuts(1, [s.row(0), s.row(1), early, s.row(3)], [])
    s.send_urgent(1, {row: logits[row] for row in (0, 2, 3)})
    lane = lane_of(s)
    assert lane.next_step(0, 0, 0)[2][1:] == (1, 1, 0b1, 0, 0, 0, 3, 1, 1)
    lane.set_mask(3, 103, 1, b"\xff" * 38)
    assert lane.rest_of_step(1)[1:] == (1, 1, 0b1000, 0, 0, 0, 2, 1, 0)
    s.slots.store(2, SlotWord.GENERATED, 1)
    assert lane.rest_of_step(1)[1:] == (1, 1, 0b100, 0, 0, 0, 1, 0, 0)
    assert not lane.await_rows(1, 0, 0)
    s.send_urgent(1, {1: logits[1]})
    assert lane.rest_of_step(1)[1:] == (1, 1, 0b10, 0, 0, 0, 0, 0, 0)
    assert s.sampled.done(1, 0) == 1
    assert [token for token, _ in s.sampled.results(1, 4)] == [20, 30, 40, 50]
