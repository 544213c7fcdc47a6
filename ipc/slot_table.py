"""The slot table: one fixed record per live request.

::

    byte 4096 + slot × 8192
      line 0   state · epoch · prompt_len · max_len · end_reason · end_error ·
               detokenizer · tokenizer
      line 1   client_id[16] · request_id[16] · arrival_ns · deadline_ns · priority · deaths
      line 2   generated · finish                 written by the sampler of the row's lane
      line 3   stop                               written by the owning detokenizer
      line 4…  sampling parameters                lines 0, 1 and 4… are the coscheduler's
    behind the last record, slot × 65536: the text of the slot's grammar, the coscheduler's too

States: FREE → ENCODING → WAITING → PREFILL → RUNNING → FINISHED → FREE; a preempted row goes from
RUNNING back to WAITING. Order of stores: a filled record becomes visible by its ``state``, stored
last; ``finish`` is stored before the last ``generated``, and the token itself before that, so
whoever sees the count also sees the token, its log-probabilities and how it ended.

Who reads a record that may be refilled meanwhile loads ``epoch`` first and ``state`` after it,
reads, and looks at both again: equal epochs around a state other than FREE mean one occupant.
"""

from __future__ import annotations

import enum
from array import array
from typing import NamedTuple

from hybridgen.errors import GrammarSpent, HybridGenError, InternalError, InvalidLogits
from hybridgen.ipc import _native, header
from hybridgen.ipc.header import RECORDS_OFFSET, Memory, SegmentKind
from hybridgen.request import ID_BYTES, MAX_GRAMMAR_BYTES, FinishReason

SLOT_BYTES = 8192
PARAMETERS_OFFSET = 256
PARAMETERS_BYTES = 5800
_CLIENT_ID_OFFSET = 64
_REQUEST_ID_OFFSET = 80
_SAMPLER_LINE = 128
_WORKER_LINES_BYTES = 128


class SlotState(enum.IntEnum):
    """Where a request stands."""

    FREE = 0
    ENCODING = 1
    WAITING = 2
    PREFILL = 3
    RUNNING = 4
    FINISHED = 5


class SlotWord(enum.IntEnum):
    """Byte offsets of the words of a slot record."""

    STATE = 0
    EPOCH = 8
    PROMPT_LEN = 16
    MAX_LEN = 24
    END_REASON = 32
    END_ERROR = 40
    DETOKENIZER = 48
    TOKENIZER = 56
    ARRIVAL_NS = 96
    DEADLINE_NS = 104
    PRIORITY = 112
    DEATHS = 120
    GENERATED = 128
    FINISH = 136
    STOP = 192


class RowError(enum.IntEnum):
    """Why the sampler ended a row, when it was an error."""

    OK = 0
    INVALID_LOGITS = 1
    GRAMMAR_SPENT = 2

    def exception(self) -> HybridGenError:
        """The error that the request ends with."""
        if self is RowError.INVALID_LOGITS:
            return InvalidLogits(
                "the model produced NaN, +inf or no finite logit for this request",
                remedy="Check logit_bias and the model's weights; other requests go on",
            )
        if self is RowError.GRAMMAR_SPENT:
            return GrammarSpent(
                "the grammar cannot be followed any further within its limits",
                param="grammar",
                remedy="Ask for something simpler: fewer alternatives, less nesting",
            )
        return InternalError("a row ended with an unknown error", value=self.name)


class Finish(NamedTuple):
    """The unpacked ``finish`` word."""

    reason: FinishReason
    row_error: RowError
    num_tokens: int


#: By number, which is several times cheaper than asking the enumeration.
_REASONS, _ROW_ERRORS = tuple(FinishReason), tuple(RowError)


def pack_finish(finish: Finish) -> int:
    """``reason | row_error << 8 | num_tokens << 16``."""
    return finish.reason | finish.row_error << 8 | finish.num_tokens << 16


def unpack_finish(word: int) -> Finish:
    """The inverse of ``pack_finish``; 0 is (NONE, OK, 0).

    Raises:
        InternalError: a reason or error number that does not exist.
    """
    try:
        return Finish(_REASONS[word & 0xFF], _ROW_ERRORS[word >> 8 & 0xFF], word >> 16)
    except IndexError:
        raise InternalError("a finish word cannot be read", value=word) from None


class SlotTable:
    """Typed view of a slots segment."""

    def __init__(self, buf: Memory) -> None:
        geometry = header.read_geometry(buf, SegmentKind.SLOTS, 3)
        self.num_slots, slot_bytes, self.max_model_len = geometry
        need_bytes = self.size_bytes(self.num_slots)
        header.check_geometry(buf, SegmentKind.SLOTS, geometry, need_bytes)
        if slot_bytes != SLOT_BYTES:
            raise InternalError(
                "slot records have another size", value=slot_bytes, limit=SLOT_BYTES
            )
        self.buf = buf
        self._view = memoryview(buf)
        self._words = self._view[: need_bytes // 8 * 8].cast("Q")

    @staticmethod
    def size_bytes(num_slots: int) -> int:
        """Bytes of the whole segment."""
        return RECORDS_OFFSET + num_slots * (SLOT_BYTES + MAX_GRAMMAR_BYTES)

    @staticmethod
    def make_geometry(num_slots: int, max_model_len: int) -> tuple[int, ...]:
        """Geometry words of the header."""
        return (num_slots, SLOT_BYTES, max_model_len)

    @classmethod
    def in_memory(cls, num_slots: int, max_model_len: int) -> SlotTable:
        """A table over private memory."""
        geometry = cls.make_geometry(num_slots, max_model_len)
        return cls(header.in_memory(SegmentKind.SLOTS, cls.size_bytes(num_slots), geometry))

    def load(self, slot: int, word: SlotWord) -> int:
        """Acquire-load one word of a slot."""
        if not 0 <= slot < self.num_slots:
            raise self._no_slot(slot)
        return _native.load(self.buf, RECORDS_OFFSET + slot * SLOT_BYTES + word)

    def store(self, slot: int, word: SlotWord, value: int) -> None:
        """Release-store one word of a slot; only its single writer may."""
        if not 0 <= slot < self.num_slots:
            raise self._no_slot(slot)
        _native.store(self.buf, RECORDS_OFFSET + slot * SLOT_BYTES + word, value)

    def write_words(self, slot: int, first: SlotWord, *values: int) -> None:
        """Write neighbouring words in one copy; only while filling, before the state."""
        start = (self._base(slot) + first) // 8
        self._words[start : start + len(values)] = memoryview(array("Q", values))

    def client_id(self, slot: int) -> bytes:
        """The 16 bytes that name the client."""
        return self._bytes(slot, _CLIENT_ID_OFFSET)

    def request_id(self, slot: int) -> bytes:
        """The 16 bytes that the client chose for the request."""
        return self._bytes(slot, _REQUEST_ID_OFFSET)

    def set_ids(self, slot: int, client_id: bytes, request_id: bytes) -> None:
        """Write both ids; coscheduler only, before the state.

        Raises:
            InternalError: an id that is not 16 bytes long.
        """
        for name in (client_id, request_id):
            if len(name) != ID_BYTES:
                raise InternalError("an id has another length", value=len(name), limit=ID_BYTES)
        start = self._base(slot) + _CLIENT_ID_OFFSET
        self._view[start : start + 2 * ID_BYTES] = client_id + request_id

    def parameters(self, slot: int) -> memoryview:
        """The bytes of ``struct hg_sampling``, for sampling/parameters.py to pack and unpack."""
        start = self._base(slot) + PARAMETERS_OFFSET
        return self._view[start : start + PARAMETERS_BYTES]

    def grammar(self, slot: int) -> memoryview:
        """The area for the text of the slot's grammar, ``MAX_GRAMMAR_BYTES`` long."""
        self._base(slot)
        start = RECORDS_OFFSET + self.num_slots * SLOT_BYTES + slot * MAX_GRAMMAR_BYTES
        return self._view[start : start + MAX_GRAMMAR_BYTES]

    def clear_worker_lines(self, slot: int) -> None:
        """Zero the sampler's and the detokenizer's line.

        The coscheduler does this while it fills a slot and nobody else owns it; it is the one
        moment at which another process than the usual writer touches these words.
        """
        start = self._base(slot) + _SAMPLER_LINE
        self._view[start : start + _WORKER_LINES_BYTES] = bytes(_WORKER_LINES_BYTES)

    def _base(self, slot: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise self._no_slot(slot)
        return RECORDS_OFFSET + slot * SLOT_BYTES

    def _no_slot(self, slot: int) -> InternalError:
        return InternalError("no such slot", value=slot, limit=self.num_slots)

    def _bytes(self, slot: int, offset: int) -> bytes:
        start = self._base(slot) + offset
        return bytes(self._view[start : start + ID_BYTES])
