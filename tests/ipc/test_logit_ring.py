"""The logit ring: steps become visible whole, and are taken back before they change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError, SegmentMismatch
from hybridgen.ipc.header import read_geometry
from hybridgen.ipc.logit_ring import POISON, LogitRing, RowHeader, SegmentKind
from hybridgen.ipc.sampled_ring import SampledRing

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
ROWS = st.lists(st.builds(RowHeader, U32, U32, U64, U64, U32), max_size=4)


@given(ROWS, st.integers(1, 2**50))
def test_a_published_step_reads_back_as_written(rows: list[RowHeader], step: int) -> None:
    ring = LogitRing.in_memory(2, 4, 20)
    ring.write_rows(step, rows)
    assert not ring.is_ready(step)
    ring.publish(step)
    assert ring.is_ready(step)
    assert ring.latest == step
    assert ring.rows(step) == rows


@pytest.mark.parametrize(("vocab_size", "row_floats"), [(1, 16), (16, 16), (17, 32), (512, 512)])
def test_rows_of_logits_are_padded_to_whole_lines(vocab_size: int, row_floats: int) -> None:
    ring = LogitRing.in_memory(2, 4, vocab_size)
    assert ring.row_floats == row_floats
    assert ring.logits(1).shape == (4 * row_floats,)
    assert ring.data_offset % 4096 == 0


def test_logits_of_the_steps_in_the_ring_do_not_overlap() -> None:
    ring = LogitRing.in_memory(3, 2, 20)
    for step in (1, 2, 3):
        view = ring.logits(step)
        view[:] = memoryview(bytearray(len(view) * 4)).cast("f")
        view[0] = view[-1] = float(step)
        ring.write_rows(step, [RowHeader(step, 0, 0, 0, 0)] * 2)
        ring.publish(step)
    for step in (1, 2, 3):
        assert (ring.logits(step)[0], ring.logits(step)[-1]) == (float(step), float(step))
        assert ring.rows(step)[1].slot == step


def test_begin_takes_the_old_step_at_the_index_back_and_leaves_the_others() -> None:
    ring = LogitRing.in_memory(2, 2, 16)
    for step in (1, 2):
        ring.write_rows(step, [])
        ring.publish(step)
    ring.begin(3)
    assert (ring.is_ready(1), ring.is_ready(2), ring.is_ready(3)) == (False, True, False)
    assert ring.latest == 2


def test_too_many_rows_are_refused_and_the_old_step_stays() -> None:
    ring = LogitRing.in_memory(1, 2, 16)
    ring.write_rows(1, [RowHeader(0, 0, 0, 0, 0)])
    ring.publish(1)
    with pytest.raises(InternalError, match="too many rows"):
        ring.write_rows(2, [RowHeader(0, 0, 0, 0, 0)] * 3)
    assert ring.is_ready(1)


def test_waiting_ends_with_a_new_step_with_the_time_limit_and_with_poison() -> None:
    ring = LogitRing.in_memory(2, 2, 16)
    assert ring.wait_published(0, 0, 500) == 0
    ring.publish(1)
    assert ring.wait_published(0, 0, 10_000_000) == 1
    ring.poison()
    assert ring.wait_published(1, 0, 10_000_000) == POISON


def test_another_segment_and_a_crooked_geometry_are_refused() -> None:
    with pytest.raises(SegmentMismatch, match="kind"):
        LogitRing(SampledRing.in_memory(2, 2).buf)
    ring = LogitRing.in_memory(2, 2, 16)
    assert isinstance(ring.buf, bytearray)
    geometry = bytearray(ring.buf)
    geometry[64 + 6 * 8] ^= 1  # step_bytes
    assert read_geometry(geometry, SegmentKind.LOGITS, 7)[6] != ring.step_bytes
    with pytest.raises(InternalError, match="geometry"):
        LogitRing(geometry)
    geometry[64] = 99  # depth: more steps than bytes
    with pytest.raises(SegmentMismatch, match="size"):
        LogitRing(geometry)
