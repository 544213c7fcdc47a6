"""The sampled ring: what the samplers answer to the gpu process, one record per decode step.

::

    byte 4096 + (s % depth) × step_bytes
      lane words      64 bytes each: done │ …          one per sampler, its only writer
      results         16 bytes each: token_id flags logprob │ …   row r by the sampler of its lane

A lane is *open* in step s while its ``done`` holds an older step, and *done* once it holds s.
Order of stores: a sampler writes the results of all its rows first and ``done`` last, then wakes;
so when every lane is done, every row of the step is there. A sampler that is replaced in between
writes the same results again: choosing a token is a pure function of what lies in shared memory.
The gpu process starts step s + depth only after all lanes were done with step s, so nobody reads
an index that is being written.
"""

from __future__ import annotations

import enum
import struct

from hybridgen import fault
from hybridgen.clock import monotonic_ns
from hybridgen.errors import InternalError
from hybridgen.ipc import _native, header
from hybridgen.ipc.header import POISON, RECORDS_OFFSET, Memory, SegmentKind

#: In a ``done`` word: not done, but do not wait. Half of the cycle ahead of all steps there are.
RELEASED = 1 << 62

_LANE_BYTES = 64
_RESULT_BYTES = 16
_RESULT = struct.Struct("=iIf4x")
_TOKEN_AND_FLAGS = struct.Struct("=iI8x")


class RowFlag(enum.IntFlag):
    """What became of a row."""

    FINISHED = 1  # last token of its request, or no token at all: take the row out
    STALE = 2  # the slot has another occupant by now: nothing was written
    NO_TOKEN = 4  # finished without a token (stopped, or invalid logits)


class SampledRing:
    """Typed view of a sampled segment.

    Attributes:
        depth: steps in the ring.
        max_rows: rows of one step at most.
        num_lanes: samplers that share the rows.
    """

    def __init__(self, buf: Memory) -> None:
        geometry = header.read_geometry(buf, SegmentKind.SAMPLED, 4)
        self.depth, self.max_rows, self.num_lanes, self.step_bytes = geometry
        need_bytes = RECORDS_OFFSET + self.depth * self.step_bytes
        header.check_geometry(buf, SegmentKind.SAMPLED, geometry, need_bytes)
        if geometry != self.make_geometry(self.depth, self.max_rows, self.num_lanes):
            raise InternalError("the geometry of a ring contradicts itself", value=str(geometry))
        self.buf = buf
        self._view = memoryview(buf)
        self._results_offset = self.num_lanes * _LANE_BYTES

    @staticmethod
    def make_geometry(depth: int, max_rows: int, num_lanes: int) -> tuple[int, ...]:
        """Geometry words of the header."""
        step_bytes = header.round_up(num_lanes * _LANE_BYTES + max_rows * _RESULT_BYTES, 64)
        return (depth, max_rows, num_lanes, step_bytes)

    @classmethod
    def size_bytes(cls, depth: int, max_rows: int, num_lanes: int) -> int:
        """Bytes of the whole segment."""
        return RECORDS_OFFSET + depth * cls.make_geometry(depth, max_rows, num_lanes)[3]

    @classmethod
    def in_memory(cls, depth: int, max_rows: int, num_lanes: int = 1) -> SampledRing:
        """A ring over private memory."""
        geometry = cls.make_geometry(depth, max_rows, num_lanes)
        size_bytes = cls.size_bytes(depth, max_rows, num_lanes)
        return cls(header.in_memory(SegmentKind.SAMPLED, size_bytes, geometry))

    def done(self, step: int, lane: int) -> int:
        """The step that this lane last finished at this index; POISON when retired."""
        return _native.load(self.buf, self._lane(step, lane))

    def wait_done(self, step: int, lane: int, spin_us: int, timeout_us: int) -> bool:
        """Wait until the lane is done with the step, at most ``timeout_us``.

        Returns:
            False after the time limit, and at once when the ring was poisoned.
        """
        offset = self._lane(step, lane)
        value = _native.load(self.buf, offset)
        deadline_ns = 0
        left_us = timeout_us
        while value not in (step, POISON) and left_us > 0:
            deadline_ns = deadline_ns or monotonic_ns() + timeout_us * 1000
            value = _native.wait(self.buf, offset, value, spin_us, left_us)
            left_us = (deadline_ns - monotonic_ns()) // 1000
        return value == step

    def lane_offset(self, step: int, lane: int) -> int:
        """Byte of a ``done`` word in ``buf``, for a device that waits for it."""
        return self._lane(step, lane)

    def result_offset(self, step: int, row: int = 0) -> int:
        """Byte of a row's record in ``buf``, for a device that copies it."""
        return self._result(step, row)

    def release(self, step: int, lane: int) -> None:
        """End a device's wait for a lane that will not answer; the step counts no more.

        A device waits for ``done ≥ step`` in cyclic order, in which POISON is less than any step.
        """
        offset = self._lane(step, lane)
        _native.store(self.buf, offset, RELEASED)
        _native.wake(self.buf, offset)

    def results(self, step: int, num_rows: int) -> list[tuple[int, int]]:
        """(token id, RowFlag bits) of rows 0 … num_rows-1, once their lanes are done."""
        return list(_TOKEN_AND_FLAGS.iter_unpack(self.raw(step, num_rows)))

    def raw(self, step: int, num_rows: int) -> memoryview:
        """The records of rows 0 … num_rows-1: 16 bytes each, struct hg_sampled.

        Raises:
            InternalError: more rows than ``max_rows``.
        """
        start = self._result(step, 0)
        if not 0 <= num_rows <= self.max_rows:
            raise InternalError("a step has too many rows", value=num_rows, limit=self.max_rows)
        return self._view[start : start + num_rows * _RESULT_BYTES]

    def write_result(
        self, step: int, row: int, token_id: int, flags: int = 0, logprob: float = 0.0
    ) -> None:
        """Write what became of a row; before ``mark_done`` of its lane."""
        _RESULT.pack_into(self._view, self._result(step, row), token_id, flags, logprob)

    def mark_done(self, step: int, lane: int) -> None:
        """Publish all results of the lane and wake the gpu process."""
        offset = self._lane(step, lane)
        fault.point("ring.commit")
        _native.store(self.buf, offset, step)
        fault.point("ring.commit")
        _native.wake(self.buf, offset)

    def poison(self) -> None:
        """Retire the ring: every wait on it ends at once, now and later.

        Only for an owner that discards the ring; no sampler's answer counts any more.
        """
        for index in range(self.depth):
            for lane in range(self.num_lanes):
                self.mark_poisoned(index, lane)

    def mark_poisoned(self, step: int, lane: int) -> None:
        """Retire the word of one lane at one step's index."""
        offset = self._lane(step, lane)
        _native.store(self.buf, offset, POISON)
        _native.wake(self.buf, offset)

    def _base(self, step: int) -> int:
        return RECORDS_OFFSET + step % self.depth * self.step_bytes

    def _lane(self, step: int, lane: int) -> int:
        if not 0 <= lane < self.num_lanes:
            raise InternalError("no such lane", value=lane, limit=self.num_lanes)
        return self._base(step) + lane * _LANE_BYTES

    def _result(self, step: int, row: int) -> int:
        if not 0 <= row < self.max_rows:
            raise InternalError("no such row", value=row, limit=self.max_rows)
        return self._base(step) + self._results_offset + row * _RESULT_BYTES
