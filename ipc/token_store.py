"""The token store: per slot one row of token ids, indexed by absolute position.

::

    byte 4096   int32[num_slots][max_model_len]
                row of a slot:  prompt ids │ generated ids │ unused
                                0 … prompt_len-1 by the tokenizer, from there on by the sampler

Prompt ids become visible by the slot's ``prompt_len`` (through the tokenizer's message and the
coscheduler's store), generated ids by its ``generated`` word, always stored after the id.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hybridgen import fault
from hybridgen.errors import InternalError, IpcError
from hybridgen.ipc import header
from hybridgen.ipc.header import RECORDS_OFFSET, Memory, SegmentKind

_ID_BYTES = 4


def check_ids(lowest: int, highest: int, vocab_size: int) -> None:
    """Refuse ids that no process of the tree has written: a model would read memory by them.

    Raises:
        IpcError: the lowest or the highest of some ids is outside the vocabulary.
    """
    if lowest < 0 or highest >= vocab_size:
        raise IpcError(
            "token ids in shared memory are outside the vocabulary",
            value=lowest if lowest < 0 else highest,
            limit=vocab_size,
            remedy="The memory was damaged, by a fault of the machine or by another program",
        )


class TokenStore:
    """Typed view of a tokens segment."""

    def __init__(self, buf: Memory) -> None:
        geometry = header.read_geometry(buf, SegmentKind.TOKENS, 2)
        self.num_slots, self.max_model_len = geometry
        end = RECORDS_OFFSET + self.num_slots * self.max_model_len * _ID_BYTES
        header.check_geometry(buf, SegmentKind.TOKENS, geometry, end)
        self.buf = buf
        self._ids = memoryview(buf)[RECORDS_OFFSET:end].cast("i")

    @staticmethod
    def size_bytes(num_slots: int, max_model_len: int) -> int:
        """Bytes of the whole segment."""
        return RECORDS_OFFSET + header.round_up(num_slots * max_model_len * _ID_BYTES, 64)

    @staticmethod
    def make_geometry(num_slots: int, max_model_len: int) -> tuple[int, ...]:
        """Geometry words of the header."""
        return (num_slots, max_model_len)

    @classmethod
    def in_memory(cls, num_slots: int, max_model_len: int) -> TokenStore:
        """A store over private memory."""
        size_bytes = cls.size_bytes(num_slots, max_model_len)
        geometry = cls.make_geometry(num_slots, max_model_len)
        return cls(header.in_memory(SegmentKind.TOKENS, size_bytes, geometry))

    def write(self, slot: int, start: int, ids: Sequence[int]) -> None:
        """Write ``ids`` at absolute positions ``start`` … of a slot's row.

        Raises:
            InternalError: positions outside the row.
            OverflowError: an id that is no int32.
        """
        first = self._first(slot, start, start + len(ids))
        self._ids[first : first + len(ids)] = memoryview(array("i", ids))
        fault.point("slot.commit")

    def read(self, slot: int, start: int, stop: int) -> list[int]:
        """Ids at absolute positions ``start`` … ``stop - 1``.

        Raises:
            InternalError: positions outside the row.
        """
        first = self._first(slot, start, stop)
        return self._ids[first : first + stop - start].tolist()

    def row(self, slot: int) -> memoryview:
        """The whole row of a slot: ``max_model_len`` items of format 'i'."""
        first = self._first(slot, 0, self.max_model_len)
        return self._ids[first : first + self.max_model_len]

    def _first(self, slot: int, start: int, stop: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise InternalError("no such slot", value=slot, limit=self.num_slots)
        if not 0 <= start <= stop <= self.max_model_len:
            raise InternalError(
                "token positions are outside the row",
                value=f"{start}…{stop}",
                limit=self.max_model_len,
            )
        return slot * self.max_model_len + start
