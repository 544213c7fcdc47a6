"""The logprob ring: a record or the knowledge that it is gone, never another token's numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError
from hybridgen.ipc import _native
from hybridgen.ipc.logprob_ring import NO_RECORD, RECORD_BYTES, LogprobRing
from hybridgen.request import TokenLogprob

IDS = st.integers(0, 2**31 - 1)
LOGPROBS = st.floats(max_value=0.0, allow_nan=False, width=32)
RECORDS = st.builds(TokenLogprob, IDS, LOGPROBS, st.lists(st.tuples(IDS, LOGPROBS), max_size=20))


@given(RECORDS, st.integers(0, 10_000))
def test_a_record_reads_back_as_written(record: TokenLogprob, index: int) -> None:
    ring = LogprobRing.in_memory(2, 8)
    ring.write(1, index, record)
    assert ring.read(1, index) == record


def test_an_overwritten_record_is_gone_and_not_another_tokens() -> None:
    ring = LogprobRing.in_memory(1, 4)
    for index in range(6):
        ring.write(0, index, TokenLogprob(index, -1.0))
    assert [ring.read(0, index) is None for index in range(6)] == [True, True] + [False] * 4
    assert ring.read(0, 5) == TokenLogprob(5, -1.0)


def test_a_record_that_is_being_written_is_not_read() -> None:
    ring = LogprobRing.in_memory(1, 4)
    ring.write(0, 3, TokenLogprob(3, -1.0))
    _native.store(ring.buf, 4096 + 3 * RECORD_BYTES, NO_RECORD)
    assert ring.read(0, 3) is None


def test_more_best_tokens_than_fit_are_refused() -> None:
    with pytest.raises(InternalError, match="too many"):
        LogprobRing.in_memory(1, 4).write(0, 0, TokenLogprob(1, -1.0, [(1, -1.0)] * 21))


def test_a_slot_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InternalError, match="no such slot"):
        LogprobRing.in_memory(1, 4).read(1, 0)
