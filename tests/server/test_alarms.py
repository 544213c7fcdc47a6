from __future__ import annotations

import asyncio

from hybridgen.server.alarms import Alarms
from tests.support.front_door import play


async def woken(names: list[str], num_names: int) -> None:
    """Until so many were."""
    while len(names) < num_names:
        await asyncio.sleep(0)


def test_those_who_wait_are_woken_in_their_order() -> None:
    async def scene() -> None:
        names: list[str] = []
        alarms = Alarms(0.01, names.append)
        began_s = asyncio.get_running_loop().time()
        for name in ("a", "b", "c"):
            alarms.set(name)
        await woken(names, 3)
        assert names == ["a", "b", "c"]
        assert asyncio.get_running_loop().time() - began_s >= 0.01

    play(scene())


def test_who_is_called_off_sleeps_on() -> None:
    async def scene() -> None:
        names: list[str] = []
        alarms = Alarms(0.01, names.append)
        for name in ("a", "b"):
            alarms.set(name)
        alarms.call_off("a")
        alarms.call_off("a")
        await woken(names, 1)
        assert names == ["b"]

    play(scene())


def test_an_alarm_that_is_set_again_counts_from_then_on() -> None:
    async def scene() -> None:
        names: list[str] = []
        alarms = Alarms(0.01, names.append)
        for name in ("a", "b", "a"):
            alarms.set(name)
        await woken(names, 2)
        assert names == ["b", "a"]

    play(scene())


def test_alarms_ring_again_after_all_were_woken() -> None:
    async def scene() -> None:
        names: list[str] = []
        alarms = Alarms(0.005, names.append)
        for name in ("a", "b"):
            alarms.set(name)
            await woken(names, len(names) + 1)
        assert names == ["a", "b"]

    play(scene())
