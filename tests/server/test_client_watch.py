from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hybridgen.errors import SlowReader
from hybridgen.server.alarms import Alarms
from hybridgen.server.client_watch import ClientWatch
from hybridgen.server.exchange import Exchange
from hybridgen.server.refusal import ClientGone
from tests.support.front_door import play


def exchange_with(messages: asyncio.Queue[dict[str, Any]]) -> Exchange:
    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    return Exchange(scope, messages.get, send)


def test_work_that_ends_by_itself_is_not_touched() -> None:
    async def scene() -> None:
        num_tasks = len(asyncio.all_tasks())
        async with ClientWatch(exchange_with(asyncio.Queue())):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == num_tasks

    play(scene())


def test_a_disconnect_interrupts_whatever_the_work_waits_for() -> None:
    async def scene() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": b"late", "more_body": False})
        messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientGone):
            async with ClientWatch(exchange_with(messages)):
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    play(scene())


def test_a_disconnect_at_the_moment_of_the_result_interrupts_nothing_later() -> None:
    async def scene() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for _ in range(3):
            result = asyncio.get_running_loop().create_future()
            try:
                async with ClientWatch(exchange_with(messages)):
                    await asyncio.sleep(0)
                    messages.put_nowait({"type": "http.disconnect"})
                    result.set_result(None)
                    await result
            except ClientGone:
                pass
            await asyncio.sleep(0)  # would raise a cancellation that was left over
            await asyncio.sleep(0)

    play(scene())


def test_what_comes_at_the_end_of_the_work_does_not_begin_the_watch_again() -> None:
    async def scene() -> None:
        num_tasks = len(asyncio.all_tasks())
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        async with ClientWatch(exchange_with(messages)):
            await asyncio.sleep(0)
            messages.put_nowait({"type": "http.request", "body": b"late", "more_body": False})
            await asyncio.sleep(0)  # it is taken; who waited for it is told in the next turn
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == num_tasks

    play(scene())


def test_a_late_watch_asks_for_nothing_before_its_time() -> None:
    async def scene() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.disconnect"})
        late: Alarms[ClientWatch] = Alarms(30.0, ClientWatch.begin)
        async with ClientWatch(exchange_with(messages), late):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert messages.qsize() == 1

    play(scene())


def test_a_late_watch_learns_of_a_disconnect_before_it_began() -> None:
    async def scene() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.disconnect"})
        late: Alarms[ClientWatch] = Alarms(0.01, ClientWatch.begin)
        with pytest.raises(ClientGone):
            async with ClientWatch(exchange_with(messages), late):
                await asyncio.Event().wait()

    play(scene())


def test_a_late_watch_does_not_begin_after_the_work() -> None:
    async def scene() -> None:
        begun: list[ClientWatch] = []
        late: Alarms[ClientWatch] = Alarms(0.005, begun.append)
        async with ClientWatch(exchange_with(asyncio.Queue()), late):
            pass
        async with ClientWatch(exchange_with(asyncio.Queue()), late) as watch:
            while not begun:
                await asyncio.sleep(0)
        assert begun == [watch]

    play(scene())


def test_a_slow_reader_is_told_apart() -> None:
    async def scene() -> None:
        async def work() -> None:
            async with ClientWatch(exchange_with(asyncio.Queue())) as watch:
                watch.interrupt_slow(30.0)
                await asyncio.Event().wait()

        with pytest.raises(SlowReader, match="30 s"):
            await work()

    play(scene())


def test_an_interruption_from_outside_stays_one() -> None:
    async def scene() -> None:
        async def work() -> None:
            async with ClientWatch(exchange_with(asyncio.Queue())):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(scene())


def test_an_error_of_the_work_is_not_hidden() -> None:
    async def scene() -> None:
        with pytest.raises(ZeroDivisionError):
            async with ClientWatch(exchange_with(asyncio.Queue())):
                raise ZeroDivisionError

    play(scene())
