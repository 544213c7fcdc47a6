"""What a sampler's predecessor left undone: the row that it may have died of."""

from __future__ import annotations

from hybridgen.ipc.logit_ring import POISON, LogitRing, RowHeader
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import SlotTable, SlotWord


def first_undone(
    ring: LogitRing, sampled: SampledRing, slots: SlotTable, lane: int
) -> RowHeader | None:
    """The first row of the lane, in the oldest step that is open there, without its token.

    Rows of a lane are done in order, so this is where the predecessor was when it ended.
    """
    latest = ring.latest
    if latest == POISON:
        return None
    for step in range(max(1, latest - ring.depth + 1), latest + 1):
        if not ring.is_ready(step) or sampled.done(step, lane) >= step:
            continue
        for row in ring.rows(step):
            if row.lane == lane and _is_undone(row, slots):
                return row
    return None


def _is_undone(row: RowHeader, slots: SlotTable) -> bool:
    if row.slot >= slots.num_slots:
        return False  # a damaged header; the native code refuses it, too
    if slots.load(row.slot, SlotWord.EPOCH) != row.epoch or slots.load(row.slot, SlotWord.FINISH):
        return False
    known = slots.load(row.slot, SlotWord.PROMPT_LEN) + slots.load(row.slot, SlotWord.GENERATED)
    return row.position >= known
