"""The logprob ring: per slot the newest log-probability records, for requests that asked.

::

    byte 4096 + (slot × depth + i % depth) × 192      record of generated token i
      generated_index │ token_id logprob │ num_top │ (token id, log-probability) × 20

A record is published by the slot's ``generated`` word. Order of stores: the sampler takes the old
record back (``generated_index`` = NO_RECORD) before it writes the new one and stores its index
last; a reader that finds another index before or after reading came too late, and says so instead
of reporting another token's numbers. Only the sampler of the row writes.
"""

from __future__ import annotations

import struct

from hybridgen.errors import InternalError
from hybridgen.ipc import _native, header
from hybridgen.ipc.header import RECORDS_OFFSET, Memory, SegmentKind
from hybridgen.request import MAX_LOGPROBS, TokenLogprob

NO_RECORD = 2**64 - 1
RECORD_BYTES = 192
_CHOSEN = struct.Struct("=ifI4x")
_TOP = struct.Struct("=if")
_CHOSEN_OFFSET = 8
_TOP_OFFSET = 24


class LogprobRing:
    """Typed view of a logprobs segment.

    Attributes:
        num_slots: as in the slot table.
        depth: records kept per slot.
    """

    def __init__(self, buf: Memory) -> None:
        geometry = header.read_geometry(buf, SegmentKind.LOGPROBS, 2)
        self.num_slots, self.depth = geometry
        need_bytes = self.size_bytes(self.num_slots, self.depth)
        header.check_geometry(buf, SegmentKind.LOGPROBS, geometry, need_bytes)
        self.buf = buf
        self._view = memoryview(buf)

    @staticmethod
    def size_bytes(num_slots: int, depth: int) -> int:
        """Bytes of the whole segment."""
        return RECORDS_OFFSET + num_slots * depth * RECORD_BYTES

    @staticmethod
    def make_geometry(num_slots: int, depth: int) -> tuple[int, ...]:
        """Geometry words of the header."""
        return (num_slots, depth)

    @classmethod
    def in_memory(cls, num_slots: int, depth: int) -> LogprobRing:
        """A ring over private memory."""
        geometry = cls.make_geometry(num_slots, depth)
        size_bytes = cls.size_bytes(num_slots, depth)
        return cls(header.in_memory(SegmentKind.LOGPROBS, size_bytes, geometry))

    def read(self, slot: int, index: int) -> TokenLogprob | None:
        """The record of generated token ``index`` (from 0), or None when it is not there any more.

        Call only for ``index`` below the slot's ``generated`` word.
        """
        base = self._base(slot, index)
        if _native.load(self.buf, base) != index:
            return None
        token_id, logprob, num_top = _CHOSEN.unpack_from(self._view, base + _CHOSEN_OFFSET)
        start = base + _TOP_OFFSET
        top_bytes = min(num_top, MAX_LOGPROBS) * _TOP.size
        top = list(_TOP.iter_unpack(self._view[start : start + top_bytes]))
        if _native.load(self.buf, base) != index:
            return None
        return TokenLogprob(token_id, logprob, top)

    def write(self, slot: int, index: int, record: TokenLogprob) -> None:
        """Write the record of generated token ``index``, as the native sampler does.

        Raises:
            InternalError: more than 20 best tokens.
        """
        if len(record.top) > MAX_LOGPROBS:
            raise InternalError("too many log-probs", value=len(record.top), limit=MAX_LOGPROBS)
        base = self._base(slot, index)
        _native.store(self.buf, base, NO_RECORD)
        chosen = (record.token_id, record.logprob, len(record.top))
        _CHOSEN.pack_into(self._view, base + _CHOSEN_OFFSET, *chosen)
        for rank, entry in enumerate(record.top):
            _TOP.pack_into(self._view, base + _TOP_OFFSET + rank * _TOP.size, *entry)
        _native.store(self.buf, base, index)

    def _base(self, slot: int, index: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise InternalError("no such slot", value=slot, limit=self.num_slots)
        return RECORDS_OFFSET + (slot * self.depth + index % self.depth) * RECORD_BYTES
