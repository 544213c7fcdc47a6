"""The logit ring: steps become visible whole, and are taken back before they change."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError, SegmentMismatch
from hybridgen.ipc import _native
from hybridgen.ipc.header import read_geometry
from hybridgen.ipc.logit_ring import POISON, Cut, CutState, LogitRing, RowHeader, SegmentKind
from hybridgen.ipc.sampled_ring import SampledRing

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
ROWS = st.lists(st.builds(RowHeader, U32, U32, U64, U64, U32, U32), max_size=4)
CUT = Cut(CutState.CANDIDATES, -1, 3.0, 1.5, 0.25, 2.0, 7, (1.5, 3.0), (4, 9))


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
    ring = LogitRing.in_memory(2, 2, 16, cut_capacity=8)
    with pytest.raises(SegmentMismatch, match="size"):  # the last cut is missing
        LogitRing(memoryview(ring.buf)[:-8])


def test_cuts_stand_behind_the_rows_one_per_row_and_step() -> None:
    ring = LogitRing.in_memory(3, 2, 20, 1, 16)
    assert ring.cut_offset == ring.data_offset + 3 * 2 * ring.row_bytes
    assert ring.cut_bytes == 64 + 16 * 8
    starts = sorted(
        ring.cut_offset_of(step) + row * ring.cut_bytes for step in (1, 2, 3) for row in (0, 1)
    )
    assert starts == [ring.cut_offset + i * ring.cut_bytes for i in range(6)]
    assert len(memoryview(ring.buf)) == starts[-1] + ring.cut_bytes
    assert ring.cut_offset_of(4) == ring.cut_offset_of(1)


def test_a_cut_is_written_as_native_code_reads_it() -> None:
    ring = LogitRing.in_memory(3, 2, 20, 1, 16)
    ring.write_cut(7, 1, CUT)
    start = ring.cut_offset_of(7) + ring.cut_bytes
    layout = _native.layout()
    head = {
        "state": ("I", CutState.CANDIDATES),
        "count": ("I", 2),
        "token_id": ("i", -1),
        "top": ("f", 3.0),
        "threshold": ("f", 1.5),
        "scale": ("f", 0.25),
        "total": ("d", 2.0),
        "step": ("Q", 7),
    }
    for name, (code, value) in head.items():
        assert struct.unpack_from(code, ring.buf, start + layout[f"hg_cut.{name}"]) == (value,)
    assert struct.unpack_from("2f", ring.buf, start + 64) == (1.5, 3.0)
    assert struct.unpack_from("2i", ring.buf, start + 64 + 16 * 4) == (4, 9)


def test_a_cut_that_does_not_fit_is_refused() -> None:
    ring = LogitRing.in_memory(2, 2, 20, 1, 8)
    too_many = CUT._replace(ids=range(9), values=[0.0] * 9)
    for row, cut in ((2, CUT), (0, too_many), (0, CUT._replace(ids=(4,)))):
        with pytest.raises(InternalError, match="does not fit"):
            ring.write_cut(1, row, cut)
    with pytest.raises(InternalError, match="by the eight"):
        LogitRing.make_geometry(2, 2, 20, 1, 12)


def test_complete_rows_are_published_apart_from_the_step_itself() -> None:
    ring = LogitRing.in_memory(2, 2, 16, 1, 8)
    ring.write_rows(1, [])
    _native.store(ring.buf, ring.ready_offset(1), 1)
    assert ring.is_ready(1)
    assert not ring.is_whole(1)
    _native.store(ring.buf, ring.whole_offset(1), 1)
    assert ring.is_whole(1)
    assert not ring.is_whole(3)  # the same place, another step
    ring.publish(2)
    assert ring.is_whole(2)


def test_a_new_cut_is_not_urgent() -> None:
    ring = LogitRing.in_memory(2, 2, 16, 1, 8)
    _native.store(ring.buf, ring.urgent_offset(1, 1), 1)
    ring.write_cut(1, 1, CUT)
    assert _native.load(ring.buf, ring.urgent_offset(1, 1)) == 0
