"""The sampled ring: results before done, one lane apart from the other."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError
from hybridgen.ipc.header import POISON
from hybridgen.ipc.sampled_ring import RowFlag, SampledRing

RESULTS = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 7), st.floats(width=32)),
    min_size=1,
    max_size=8,
)


@given(RESULTS, st.integers(1, 2**40))
def test_results_read_back_as_written(results: list[tuple[int, int, float]], step: int) -> None:
    ring = SampledRing.in_memory(2, 8, 3)
    for row, (token_id, flags, logprob) in enumerate(results):
        ring.write_result(step, row, token_id, flags, logprob)
    assert ring.results(step, len(results)) == [result[:2] for result in results]
    logprobs = [fields[2] for fields in struct.iter_unpack("=iIf4x", ring.raw(step, len(results)))]
    assert struct.pack(f"{len(results)}f", *logprobs) == struct.pack(
        f"{len(results)}f", *(result[2] for result in results)
    )
    assert [ring.done(step, lane) for lane in range(3)] == [0, 0, 0]


def test_a_lane_is_done_alone_and_only_for_its_step() -> None:
    ring = SampledRing.in_memory(2, 4, 2)
    ring.mark_done(1, 0)
    assert ring.wait_done(1, 0, 0, 0)
    assert not ring.wait_done(1, 1, 0, 0)
    assert not ring.wait_done(2, 0, 0, 0)
    assert not ring.wait_done(3, 0, 0, 0), "step 3 shares its index with step 1"


def test_waiting_keeps_its_time_limit() -> None:
    ring = SampledRing.in_memory(2, 4)
    started_s = time.monotonic()
    assert not ring.wait_done(1, 0, 100, 3_000)
    assert 0.003 <= time.monotonic() - started_s < 5.0


def test_poison_ends_every_wait_at_once() -> None:
    ring = SampledRing.in_memory(2, 4, 2)
    ring.poison()
    started_s = time.monotonic()
    for step in (1, 2, 3):
        for lane in (0, 1):
            assert not ring.wait_done(step, lane, 0, 10_000_000)
            assert ring.done(step, lane) == POISON
    assert time.monotonic() - started_s < 5.0


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_does_not_exist_is_refused(row: int) -> None:
    with pytest.raises(InternalError, match="no such row"):
        SampledRing.in_memory(2, 4, 2).write_result(1, row, 0)


@pytest.mark.parametrize("lane", [-1, 2])
def test_a_lane_that_does_not_exist_is_refused(lane: int) -> None:
    with pytest.raises(InternalError, match="no such lane"):
        SampledRing.in_memory(2, 4, 2).mark_done(1, lane)


def test_flags_read_as_a_set() -> None:
    assert RowFlag(5) == RowFlag.FINISHED | RowFlag.NO_TOKEN
