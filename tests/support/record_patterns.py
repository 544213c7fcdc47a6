"""Records whose every byte follows from their number, so that a torn one shows."""

from __future__ import annotations

import struct

from hybridgen.ipc.logit_ring import LogitRing, RowHeader
from hybridgen.ipc.slot_table import PARAMETERS_BYTES, SlotState, SlotTable, SlotWord

NUM_SLOTS, MAX_LEN = 4, 256
DEPTH, MAX_ROWS, VOCAB_SIZE = 2, 4, 1024
_MASK = 2**64 - 1


def mix(number: int) -> int:
    """A 64-bit number that looks nothing like its neighbours' (SplitMix64's last step)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31


def pattern(number: int, num_bytes: int) -> bytes:
    """``num_bytes`` (a multiple of 8) that say ``number`` over and over."""
    return struct.pack("=Q", mix(number)) * (num_bytes // 8)


def row_headers(step: int) -> list[RowHeader]:
    """The row headers of a step; their number changes too."""
    return [
        RowHeader(step & 0xFFFF, row, mix(step), step, row) for row in range(1 + step % MAX_ROWS)
    ]


def write_step(ring: LogitRing, step: int) -> None:
    """Fill and publish a step of the logit ring."""
    ring.begin(step)
    data = ring.logits(step).cast("B")
    row_bytes = len(data) // MAX_ROWS
    for row in range(MAX_ROWS):  # row by row: more places to be killed at
        data[row * row_bytes : (row + 1) * row_bytes] = pattern(step, row_bytes)
    ring.write_rows(step, row_headers(step))
    ring.publish(step)


def read_step(ring: LogitRing, step: int) -> bool | None:
    """Whether the step is whole; None when it is not, or no longer, there to be read."""
    if not ring.is_ready(step):
        return None
    rows = ring.rows(step)
    data = bytes(ring.logits(step).cast("B"))
    if not ring.is_ready(step):
        return None
    return rows == row_headers(step) and data == pattern(step, len(data))


def fill_slot(table: SlotTable, slot: int, epoch: int) -> None:
    """Put a new occupant into a slot, the state last."""
    table.store(slot, SlotWord.STATE, SlotState.FREE)
    table.store(slot, SlotWord.EPOCH, epoch)
    table.set_ids(slot, pattern(epoch, 16), pattern(epoch + 1, 16))
    table.parameters(slot)[:] = pattern(epoch, PARAMETERS_BYTES)
    table.store(slot, SlotWord.PROMPT_LEN, mix(epoch))
    table.store(slot, SlotWord.STATE, SlotState.WAITING)


def read_slot(table: SlotTable, slot: int) -> bool | None:
    """Whether the slot's record is whole; None while it is free or being refilled."""
    # The epoch first: loaded after the state it could belong to a record still being filled.
    epoch = table.load(slot, SlotWord.EPOCH)
    if table.load(slot, SlotWord.STATE) != SlotState.WAITING:
        return None
    record = (table.client_id(slot), table.request_id(slot), bytes(table.parameters(slot)))
    prompt_len = table.load(slot, SlotWord.PROMPT_LEN)
    is_same = table.load(slot, SlotWord.STATE) == SlotState.WAITING
    if not is_same or table.load(slot, SlotWord.EPOCH) != epoch:
        return None
    expected = (pattern(epoch, 16), pattern(epoch + 1, 16), pattern(epoch, PARAMETERS_BYTES))
    return record == expected and prompt_len == mix(epoch)


def token_at(position: int) -> int:
    """The token id that belongs at a position."""
    return mix(position) & 0x7FFFFFFF
