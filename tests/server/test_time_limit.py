from __future__ import annotations

import asyncio

import pytest

from hybridgen.server.time_limit import TimeLimit
from tests.support.front_door import play


def test_what_takes_too_long_is_a_timeout_and_leaves_no_cancellation() -> None:
    async def scene() -> None:
        limit = TimeLimit(0.01)
        with pytest.raises(TimeoutError), limit.stretch():
            await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    play(scene())


def test_what_ends_in_time_is_never_interrupted() -> None:
    async def scene() -> None:
        limit = TimeLimit(0.01)
        with limit.stretch():
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError), limit.stretch():  # the next one counts from its begin
            await asyncio.Event().wait()

    play(scene())


def test_a_cancellation_from_outside_stays_one() -> None:
    async def scene() -> None:
        limit = TimeLimit(30.0)

        async def work() -> None:
            with limit.stretch():
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(scene())


def test_one_at_the_moment_of_the_timeout_stays_one_too() -> None:
    async def scene() -> None:
        limit = TimeLimit(30.0)

        async def work() -> None:
            with stretch:
                await asyncio.Event().wait()

        stretch = limit.stretch()
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        stretch.interrupt()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(scene())


def test_an_error_of_the_work_is_not_hidden() -> None:
    async def scene() -> None:
        limit = TimeLimit(30.0)
        with pytest.raises(ZeroDivisionError), limit.stretch():
            raise ZeroDivisionError

    play(scene())
