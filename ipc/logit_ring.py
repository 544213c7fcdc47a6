"""The logit ring: what the gpu process hands to the samplers, one record per decode step.

::

    byte 128                            latest: newest published step
    byte 192                            announced: newest step given to a device
    byte 4096 + (s % depth) × step_bytes
      ready │ num_rows │ …              64 bytes
      row headers                       32 bytes each: slot lane epoch position detokenizer
    byte data_offset + ((s % depth) × max_rows + r) × row_bytes
      float32[vocab_size]               logits of row r, rows padded to 64 bytes

Steps count from 1. A step's index is, in turn:

    old       ready == s - depth        readable by whoever still needs the older step
    filling   ready == 0                ``begin(s)``: the gpu process writes logits and headers
    ready     ready == s                ``publish(s)``: readable; samplers answer in sampled_ring

Order of stores: ``begin`` takes the old step back *before* its bytes change, so a late reader that
looks at ``ready`` again after reading knows whether what it read is whole. ``publish`` stores
``ready`` after all bytes of the step and ``latest`` after ``ready``: whoever sees ``latest == s``
finds the step there. The wake-up comes last, so a sleeper never wakes to the old value for good.

Where a device computes, it stores ``ready`` and ``latest`` itself, long after the host has written
the headers, and it cannot wake anybody. So the host *announces* a step as it enqueues it, which
wakes; samplers then look at ``latest`` again and again until the step is there.

Only the gpu process writes, and the ring belongs to one incarnation of it: when that dies, the
supervisor poisons the ring (nobody waits on it any more) and makes a new one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from hybridgen.errors import InternalError
from hybridgen.ipc import _native, header
from hybridgen.ipc.header import POISON, RECORDS_OFFSET, Memory, SegmentKind

__all__ = ["POISON", "LogitRing", "RowHeader"]

_LATEST_OFFSET = 128
_ANNOUNCED_OFFSET = 192
_STEP_BYTES = 64
_NUM_ROWS_OFFSET = 8
_ROW_BYTES = 32
_ROW = struct.Struct("=IIQQI4x")
_FLOAT_BYTES = 4
_PAGE_BYTES = 4096


class RowHeader(NamedTuple):
    """One row of a step's batch."""

    slot: int
    lane: int  # which sampler does it
    epoch: int  # occupant of the slot; another one there means the row is stale
    position: int  # absolute position of the token to choose
    detokenizer: int


class LogitRing:
    """Typed view of a logits segment.

    Attributes:
        depth: steps in the ring.
        max_rows: rows of one step at most.
        vocab_size: logits per row.
        row_floats: distance of two rows in floats, vocab_size rounded up to 16.
        num_lanes: samplers that share the rows.
    """

    def __init__(self, buf: Memory) -> None:
        geometry = header.read_geometry(buf, SegmentKind.LOGITS, 7)
        self.depth, self.max_rows, self.vocab_size, self.row_bytes = geometry[:4]
        self.data_offset, self.num_lanes, self.step_bytes = geometry[4:]
        end = self.data_offset + self.depth * self.max_rows * self.row_bytes
        header.check_geometry(buf, SegmentKind.LOGITS, geometry, end)
        if geometry != self.make_geometry(
            self.depth, self.max_rows, self.vocab_size, self.num_lanes
        ):
            raise InternalError(
                "the geometry of a logit ring contradicts itself", value=str(geometry)
            )
        self.row_floats = self.row_bytes // _FLOAT_BYTES
        self.buf = buf
        self._view = memoryview(buf)
        self._floats = self._view[self.data_offset : end].cast("f")

    @staticmethod
    def make_geometry(
        depth: int, max_rows: int, vocab_size: int, num_lanes: int
    ) -> tuple[int, ...]:
        """Geometry words of the header."""
        row_bytes = header.round_up(vocab_size * _FLOAT_BYTES, 64)
        step_bytes = header.round_up(_STEP_BYTES + max_rows * _ROW_BYTES, 64)
        data_offset = header.round_up(RECORDS_OFFSET + depth * step_bytes, _PAGE_BYTES)
        return (depth, max_rows, vocab_size, row_bytes, data_offset, num_lanes, step_bytes)

    @classmethod
    def size_bytes(cls, depth: int, max_rows: int, vocab_size: int) -> int:
        """Bytes of the whole segment."""
        geometry = cls.make_geometry(depth, max_rows, vocab_size, 1)
        return geometry[4] + depth * max_rows * geometry[3]

    @classmethod
    def in_memory(cls, depth: int, max_rows: int, vocab_size: int, num_lanes: int = 1) -> LogitRing:
        """A ring over private memory."""
        size_bytes = cls.size_bytes(depth, max_rows, vocab_size)
        geometry = cls.make_geometry(depth, max_rows, vocab_size, num_lanes)
        return cls(header.in_memory(SegmentKind.LOGITS, size_bytes, geometry))

    @property
    def latest(self) -> int:
        """Newest published step, 0 before the first, POISON when retired."""
        return _native.load(self.buf, _LATEST_OFFSET)

    def logits(self, step: int) -> memoryview[float]:
        """All rows of a step: max_rows × row_floats items of format 'f', contiguous."""
        num_floats = self.max_rows * self.row_floats
        first = step % self.depth * num_floats
        return self._floats[first : first + num_floats]

    def begin(self, step: int) -> None:
        """Take the old step at this index back. Call before writing into ``logits(step)``."""
        _native.store(self.buf, self._base(step), 0)

    def write_rows(self, step: int, rows: Sequence[RowHeader]) -> None:
        """Write the row headers of a step; rows[r] describes row r of its logits.

        Raises:
            InternalError: more rows than ``max_rows``.
        """
        if len(rows) > self.max_rows:
            raise InternalError("a step has too many rows", value=len(rows), limit=self.max_rows)
        self.begin(step)
        offset = self._base(step)
        _native.store(self.buf, offset + _NUM_ROWS_OFFSET, len(rows))
        offset += _STEP_BYTES
        for row in rows:
            _ROW.pack_into(self._view, offset, *row)
            offset += _ROW_BYTES

    def write_records(self, step: int, records: Memory, num_rows: int) -> None:
        """As ``write_rows``, from ``num_rows`` finished ``hg_row`` records of 32 bytes.

        Raises:
            InternalError: more rows than ``max_rows``, or another number of bytes.
        """
        num_bytes = num_rows * _ROW_BYTES
        view = memoryview(records).cast("B")
        if num_rows > self.max_rows or len(view) != num_bytes:
            raise InternalError(
                "a step has too many rows, or rows of another size",
                value=f"{num_rows} rows in {len(view)} bytes",
                limit=f"{self.max_rows} rows of {_ROW_BYTES} bytes",
            )
        self.begin(step)
        offset = self._base(step)
        _native.store(self.buf, offset + _NUM_ROWS_OFFSET, num_rows)
        self._view[offset + _STEP_BYTES : offset + _STEP_BYTES + num_bytes] = view

    def publish(self, step: int) -> None:
        """Make a step visible and wake the samplers."""
        _native.store(self.buf, self._base(step), step)
        _native.store(self.buf, _LATEST_OFFSET, step)
        _native.wake(self.buf, _LATEST_OFFSET)

    @property
    def announced(self) -> int:
        """Newest step given to a device, 0 before the first, POISON when retired."""
        return _native.load(self.buf, _ANNOUNCED_OFFSET)

    @property
    def latest_offset(self) -> int:
        """Byte of ``latest`` in ``buf``, for a device that stores it."""
        return _LATEST_OFFSET

    def ready_offset(self, step: int) -> int:
        """Byte of a step's ``ready`` in ``buf``, for a device that stores it."""
        return self._base(step)

    def logits_offset(self, step: int) -> int:
        """Byte of a step's first logits row in ``buf``, for a device that copies rows there."""
        return self.data_offset + step % self.depth * self.max_rows * self.row_bytes

    def announce(self, step: int) -> None:
        """A device was given this step, headers written: wake the samplers to look for it."""
        _native.store(self.buf, _ANNOUNCED_OFFSET, step)
        _native.wake(self.buf, _ANNOUNCED_OFFSET)

    def wait_announced(self, seen: int, spin_us: int, timeout_us: int) -> int:
        """Wait until ``announced`` is not ``seen``, as ``wait_published`` does for ``latest``."""
        return _native.wait(self.buf, _ANNOUNCED_OFFSET, seen, spin_us, timeout_us)

    def wait_published(self, seen: int, spin_us: int, timeout_us: int) -> int:
        """Wait until ``latest`` is not ``seen``, at most ``timeout_us``.

        Returns:
            ``latest``: POISON when retired; ``seen`` itself after the time limit, a signal or a
            late wake-up, so call in a loop.
        """
        return _native.wait(self.buf, _LATEST_OFFSET, seen, spin_us, timeout_us)

    def poison(self) -> None:
        """Retire the ring: every wait on it ends at once, now and later."""
        for offset in (_LATEST_OFFSET, _ANNOUNCED_OFFSET):
            _native.store(self.buf, offset, POISON)
            _native.wake(self.buf, offset)

    def is_ready(self, step: int) -> bool:
        """Whether this very step is at its index. Look before reading, and again after."""
        return _native.load(self.buf, self._base(step)) == step

    def rows(self, step: int) -> list[RowHeader]:
        """Row headers of a published step.

        Raises:
            InternalError: a row count that cannot be.
        """
        base = self._base(step)
        num_rows = _native.load(self.buf, base + _NUM_ROWS_OFFSET)
        if num_rows > self.max_rows:
            raise InternalError("a step has too many rows", value=num_rows, limit=self.max_rows)
        start = base + _STEP_BYTES
        headers = self._view[start : start + num_rows * _ROW_BYTES]
        return [RowHeader(*row) for row in _ROW.iter_unpack(headers)]

    def _base(self, step: int) -> int:
        return RECORDS_OFFSET + step % self.depth * self.step_bytes
