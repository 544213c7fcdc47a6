from __future__ import annotations

import dataclasses
import math

from hybridgen.scheduler.alarms import Alarms


@dataclasses.dataclass(eq=False)
class Item:
    alarm_s: float = math.inf


def test_only_the_time_set_last_rings() -> None:
    alarms: Alarms[Item] = Alarms()
    item = Item()
    alarms.set(item, 5.0)
    alarms.set(item, 3.0)
    assert alarms.next_s() == 3.0
    assert alarms.pop_due(4.0) == [item]
    assert alarms.pop_due(10.0) == []
    assert alarms.next_s() == math.inf


def test_a_cleared_alarm_does_not_ring() -> None:
    alarms: Alarms[Item] = Alarms()
    item = Item()
    alarms.set(item, 1.0)
    alarms.clear(item)
    assert alarms.pop_due(2.0) == []
    assert len(alarms) == 0


def test_due_items_come_in_the_order_of_their_times() -> None:
    alarms: Alarms[Item] = Alarms()
    items = [Item() for _ in range(5)]
    for item, when_s in zip(items, (3.0, 1.0, 2.0, 9.0, 1.0), strict=True):
        alarms.set(item, when_s)
    assert alarms.pop_due(3.0) == [items[1], items[4], items[2], items[0]]


def test_stale_entries_do_not_pile_up() -> None:
    alarms: Alarms[Item] = Alarms()
    for number in range(10_000):
        item = Item()
        alarms.set(item, 600.0 + number)
        alarms.clear(item)
    assert len(alarms._heap) <= 256
