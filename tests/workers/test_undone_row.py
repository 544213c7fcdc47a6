"""Which row a sampler that ended was at."""

from __future__ import annotations

import pytest

from hybridgen.ipc.logit_ring import LogitRing, RowHeader
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import SlotTable, SlotWord
from hybridgen.workers.undone_row import first_undone

LANE = 1
PROMPT_LEN = 10


@pytest.fixture
def stage() -> tuple[LogitRing, SampledRing, SlotTable]:
    ring = LogitRing.in_memory(2, 4, 16, 2)
    slots = SlotTable.in_memory(4, 64)
    for slot in range(4):
        slots.store(slot, SlotWord.EPOCH, 1)
        slots.store(slot, SlotWord.PROMPT_LEN, PROMPT_LEN)
    return ring, SampledRing.in_memory(2, 4, 2), slots


def publish(ring: LogitRing, step: int, *rows: RowHeader) -> None:
    ring.begin(step)
    ring.write_rows(step, list(rows))
    ring.publish(step)


def row(slot: int, *, lane: int = LANE, position: int = PROMPT_LEN) -> RowHeader:
    return RowHeader(slot, lane, 1, position, 0)


def test_it_is_the_first_of_the_lane_without_its_token(
    stage: tuple[LogitRing, SampledRing, SlotTable],
) -> None:
    ring, sampled, slots = stage
    publish(ring, 1, row(0, lane=0), row(1), row(2), row(3))
    slots.store(1, SlotWord.GENERATED, 1)  # done before the end
    found = first_undone(ring, sampled, slots, LANE)
    assert found is not None
    assert found.slot == 2


def test_rows_of_others_finished_ones_and_former_occupants_are_nobodys_end(
    stage: tuple[LogitRing, SampledRing, SlotTable],
) -> None:
    ring, sampled, slots = stage
    slots.store(1, SlotWord.EPOCH, 2)
    slots.store(2, SlotWord.FINISH, 1)
    publish(ring, 1, row(0, lane=0), row(1), row(2), row(99))
    assert first_undone(ring, sampled, slots, LANE) is None


def test_a_lane_that_is_done_left_nothing(
    stage: tuple[LogitRing, SampledRing, SlotTable],
) -> None:
    ring, sampled, slots = stage
    assert first_undone(ring, sampled, slots, LANE) is None
    publish(ring, 1, row(0))
    sampled.mark_done(1, LANE)
    assert first_undone(ring, sampled, slots, LANE) is None


def test_a_poisoned_ring_is_not_looked_at(
    stage: tuple[LogitRing, SampledRing, SlotTable],
) -> None:
    ring, sampled, slots = stage
    publish(ring, 1, row(0))
    ring.poison()
    assert first_undone(ring, sampled, slots, LANE) is None
