"""The record ring against a queue."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridgen.errors import InternalError, RingFull
from hybridgen.ipc import _native
from hybridgen.ipc.record_ring import RecordRing

NUM_RECORDS, RECORD_BYTES = 8, 3


class RingAgainstQueue(RuleBasedStateMachine):
    """Random pushes and pops; the queue is the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = RecordRing.in_memory(NUM_RECORDS, RECORD_BYTES)
        self.queue: deque[bytes] = deque()

    @rule(records=st.lists(st.binary(min_size=3, max_size=3), max_size=12))
    def push(self, records: list[bytes]) -> None:
        num_pushed = self.ring.push(b"".join(records))
        assert num_pushed == min(len(records), NUM_RECORDS - len(self.queue))
        self.queue.extend(records[:num_pushed])

    @rule(max_records=st.integers(0, 12))
    def pop(self, max_records: int) -> None:
        expected = [self.queue.popleft() for _ in range(min(max_records, len(self.queue)))]
        assert self.ring.pop(max_records) == b"".join(expected)

    @precondition(lambda self: len(self.queue) == NUM_RECORDS)
    @rule()
    def push_all_refuses(self) -> None:
        with pytest.raises(RingFull):
            self.ring.push_all(b"abc")

    @invariant()
    def counts_agree(self) -> None:
        assert self.ring.num_filled == len(self.queue)
        assert self.ring.wait_filled(0, 0) == bool(self.queue)
        assert self.ring.wait_room(0, 0) == (len(self.queue) < NUM_RECORDS)


TestRingAgainstQueue = RingAgainstQueue.TestCase


def test_push_raises_ring_full_when_not_all_records_fit_and_pushes_none() -> None:
    ring = RecordRing.in_memory(4, 1)
    ring.push_all(b"abc")
    with pytest.raises(RingFull) as caught:
        ring.push_all(b"de")
    assert (caught.value.fields["value"], caught.value.fields["limit"]) == (2, 1)
    assert ring.pop(9) == b"abc"


def test_half_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        RecordRing.in_memory(4, 2).push(b"abc")


def test_a_ring_needs_a_power_of_two() -> None:
    with pytest.raises(InternalError, match="power of two"):
        RecordRing.in_memory(6, 2)


@pytest.mark.parametrize("word", [64, 72])
def test_native_code_refuses_a_damaged_geometry(word: int) -> None:
    ring = RecordRing.in_memory(4, 2)
    _native.store(ring.buf, word, 2**40)
    with pytest.raises(ValueError, match="geometry"):
        ring.pop(1)
    with pytest.raises(ValueError, match="geometry"):
        ring.push(b"ab")


def test_a_damaged_head_never_reads_past_the_ring() -> None:
    ring = RecordRing.in_memory(4, 2)
    _native.store(ring.buf, 128, 2**60)
    assert ring.pop(2**60) == bytes(8)
    assert ring.push(b"ab") == 0
