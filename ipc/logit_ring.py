"""The logit ring: what the gpu process hands to the samplers, one record per decode step.

::

    byte 128                            latest: newest published step
    byte 192                            announced: newest step given to a device
    byte 4096 + (s % depth) × step_bytes
      ready │ num_rows │ whole │ …      64 bytes
      row headers                       32 bytes each: slot lane epoch position detokenizer flags
    byte data_offset + ((s % depth) × max_rows + r) × row_bytes
      float32[vocab_size]               logits of row r, rows padded to 64 bytes
    byte cut_offset + ((s % depth) × max_rows + r) × cut_bytes
      struct hg_cut                     64 bytes: what row r comes to, see ipc/layout.h
      float32[C] │ int32[C]             its likeliest candidates, C = cut_capacity; 0: no cuts

Steps count from 1. A step's index is, in turn:

    old       ready == s - depth        readable by whoever still needs the older step
    filling   ready == 0                ``begin(s)``: the gpu process writes logits and headers
    ready     ready == s                ``publish(s)``: readable; samplers answer in sampled_ring
    whole     … and whole == s          the complete rows are readable too

Order of stores: ``begin`` takes the old step back *before* its bytes change, so a late reader that
looks at ``ready`` again after reading knows whether what it read is whole. ``publish`` stores
``whole`` after all bytes of the step, ``ready`` after that, and ``latest`` after ``ready``: whoever
sees ``latest == s`` finds the step there. The wake-up comes last, so a sleeper never wakes to the
old value for good.

Where a device computes, it stores ``ready`` and ``latest`` itself, long after the host has written
the headers, and it cannot wake anybody. So the host *announces* a step as it enqueues it, which
wakes; samplers then look at ``latest`` again and again until the step is there. In a ring with
cuts a device publishes as soon as the cuts are there, and most rows are answered from their cut
alone. Behind them it sends the rows that it takes for undecided, each complete and then the word
``urgent`` of its cut; then it copies all rows and stores ``whole``. Without cuts, ``ready`` says
that the rows are there.

Only the gpu process writes, and the ring belongs to one incarnation of it: when that dies, the
supervisor poisons the ring (nobody waits on it any more) and makes a new one.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from hybridgen import fault
from hybridgen.errors import InternalError
from hybridgen.ipc import _native, header
from hybridgen.ipc.header import POISON, RECORDS_OFFSET, Memory, SegmentKind

__all__ = ["POISON", "Cut", "CutState", "LogitRing", "RowHas", "RowHeader"]

_LATEST_OFFSET = 128
_ANNOUNCED_OFFSET = 192
_STEP_BYTES = 64
_NUM_ROWS_OFFSET = 8
_WHOLE_OFFSET = 16
_ROW_BYTES = 32
_ROW = struct.Struct("=IIQQII")
_CUT_BYTES = 64
_CUT = struct.Struct("=IIifffdQ24x")
_CUT_URGENT_OFFSET = 40
_CANDIDATE_BYTES = 8
_FLOAT_BYTES = 4
_PAGE_BYTES = 4096


class RowHas(enum.IntFlag):
    """What the device wrote for a row beside its logits."""

    CUT = 1
    TOKEN = 2  # in the cut: the device already goes on with it


class CutState(enum.IntEnum):
    """What a cut holds."""

    NONE = 0  # an invalid row, or more candidates than fit
    CANDIDATES = 1
    TOKEN = 2  # the device's choice; there may be no candidates


class RowHeader(NamedTuple):
    """One row of a step's batch."""

    slot: int
    lane: int  # which sampler does it
    epoch: int  # occupant of the slot; another one there means the row is stale
    position: int  # absolute position of the token to choose
    detokenizer: int
    flags: int = 0  # RowHas


class Cut(NamedTuple):
    """What a row comes to, as the device writes it; fields as in struct hg_cut."""

    state: CutState
    token_id: int
    top: float  # the largest logit
    threshold: float
    scale: float  # log2(e) / temperature in float32; 0: greedy
    total: float  # weight of all logits at that scale
    step: int
    values: Sequence[float] = ()  # of every id whose logit reaches the threshold,
    ids: Sequence[int] = ()  # in ascending order of these


class LogitRing:
    """Typed view of a logits segment.

    Attributes:
        depth: steps in the ring.
        max_rows: rows of one step at most.
        vocab_size: logits per row.
        row_floats: distance of two rows in floats, vocab_size rounded up to 16.
        num_lanes: samplers that share the rows.
        cut_capacity: candidates in a row's cut at most, 0 where rows have no cuts.
        cut_offset: byte of the first cut.
        cut_bytes: distance of two rows' cuts.
    """

    def __init__(self, buf: Memory) -> None:
        geometry = header.read_geometry(buf, SegmentKind.LOGITS, 8)
        self.depth, self.max_rows, self.vocab_size, self.row_bytes = geometry[:4]
        self.data_offset, self.num_lanes, self.step_bytes, self.cut_capacity = geometry[4:]
        self.cut_offset = self.data_offset + self.depth * self.max_rows * self.row_bytes
        self.cut_bytes = _cut_bytes(self.cut_capacity)
        end = self.cut_offset + self.depth * self.max_rows * self.cut_bytes
        header.check_geometry(buf, SegmentKind.LOGITS, geometry[:7], end)
        if geometry != self.make_geometry(
            self.depth, self.max_rows, self.vocab_size, self.num_lanes, self.cut_capacity
        ):
            raise InternalError(
                "the geometry of a logit ring contradicts itself", value=str(geometry)
            )
        self.row_floats = self.row_bytes // _FLOAT_BYTES
        self.buf = buf
        self._view = memoryview(buf)
        self._floats = self._view[self.data_offset : self.cut_offset].cast("f")

    @staticmethod
    def make_geometry(
        depth: int, max_rows: int, vocab_size: int, num_lanes: int, cut_capacity: int = 0
    ) -> tuple[int, ...]:
        """Geometry words of the header.

        Raises:
            InternalError: a cut_capacity that is no multiple of 8.
        """
        if cut_capacity % 8:
            raise InternalError("a cut holds candidates by the eight", value=cut_capacity, limit=8)
        row_bytes = header.round_up(vocab_size * _FLOAT_BYTES, 64)
        step_bytes = header.round_up(_STEP_BYTES + max_rows * _ROW_BYTES, 64)
        data_offset = header.round_up(RECORDS_OFFSET + depth * step_bytes, _PAGE_BYTES)
        shape = (depth, max_rows, vocab_size, row_bytes)
        return (*shape, data_offset, num_lanes, step_bytes, cut_capacity)

    @classmethod
    def size_bytes(cls, depth: int, max_rows: int, vocab_size: int, cut_capacity: int = 0) -> int:
        """Bytes of the whole segment."""
        geometry = cls.make_geometry(depth, max_rows, vocab_size, 1, cut_capacity)
        return geometry[4] + depth * max_rows * (geometry[3] + _cut_bytes(cut_capacity))

    @classmethod
    def in_memory(
        cls, depth: int, max_rows: int, vocab_size: int, num_lanes: int = 1, cut_capacity: int = 0
    ) -> LogitRing:
        """A ring over private memory."""
        size_bytes = cls.size_bytes(depth, max_rows, vocab_size, cut_capacity)
        geometry = cls.make_geometry(depth, max_rows, vocab_size, num_lanes, cut_capacity)
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
        fault.point("ring.commit")

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
        fault.point("ring.commit")
        self._view[offset + _STEP_BYTES : offset + _STEP_BYTES + num_bytes] = view

    def write_cut(self, step: int, row: int, cut: Cut) -> None:
        """Write the cut of one row, as a device does before it publishes.

        Raises:
            InternalError: no such row, or more candidates than fit.
        """
        count, capacity = len(cut.ids), self.cut_capacity
        if not (row < self.max_rows and len(cut.values) == count <= capacity):
            raise InternalError(
                "a cut does not fit the ring",
                value=f"{count} ids and {len(cut.values)} values in row {row}",
                limit=f"{capacity} candidates in {self.max_rows} rows",
            )
        start = self.cut_offset_of(step) + row * self.cut_bytes
        head = (cut.token_id, cut.top, cut.threshold, cut.scale, cut.total, cut.step)
        _CUT.pack_into(self._view, start, cut.state, count, *head)
        struct.pack_into(f"={count}f", self._view, start + _CUT_BYTES, *cut.values)
        ids_start = start + _CUT_BYTES + capacity * _FLOAT_BYTES
        struct.pack_into(f"={count}i", self._view, ids_start, *cut.ids)

    def publish(self, step: int) -> None:
        """Make a step with complete rows visible and wake the samplers."""
        _native.store(self.buf, self.whole_offset(step), step)
        fault.point("ring.commit")
        _native.store(self.buf, self._base(step), step)
        fault.point("ring.commit")
        _native.store(self.buf, _LATEST_OFFSET, step)
        fault.point("ring.commit")
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

    def whole_offset(self, step: int) -> int:
        """Byte of a step's ``whole`` in ``buf``, for a device that stores it."""
        return self._base(step) + _WHOLE_OFFSET

    def urgent_offset(self, step: int, row: int) -> int:
        """Byte of ``urgent`` of a row's cut in ``buf``, for a device that stores it."""
        return self.cut_offset_of(step) + row * self.cut_bytes + _CUT_URGENT_OFFSET

    def logits_offset(self, step: int) -> int:
        """Byte of a step's first logits row in ``buf``, for a device that copies rows there."""
        return self.data_offset + step % self.depth * self.max_rows * self.row_bytes

    def cut_offset_of(self, step: int) -> int:
        """Byte of the cut of a step's first row in ``buf``, for a device that writes it."""
        return self.cut_offset + step % self.depth * self.max_rows * self.cut_bytes

    def announce(self, step: int) -> None:
        """A device was given this step, headers written: wake the samplers to look for it."""
        _native.store(self.buf, _ANNOUNCED_OFFSET, step)
        fault.point("ring.commit")
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

    def is_whole(self, step: int) -> bool:
        """Whether a step's complete rows are there."""
        return _native.load(self.buf, self.whole_offset(step)) == step

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


def _cut_bytes(cut_capacity: int) -> int:
    return _CUT_BYTES + _CANDIDATE_BYTES * cut_capacity if cut_capacity else 0
