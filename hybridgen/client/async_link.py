"""One connection of an asyncio client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from hybridgen.client.address import Address
from hybridgen.client.peer import Peer
from hybridgen.errors import ChannelTimeout, InvalidRequest
from hybridgen.ipc.async_channel import AsyncDealer

_MAX_FRAMES_IN_A_ROW = 64  # then the other tasks of the loop get their turn


class AsyncLink:
    """A dealer with a task that reads it and one that writes it.

    Args:
        on_connect: called with the peer at every connection.
        on_message: called with the peer and each message.
        on_refused: called with a message too large to send, and the error.
        on_broken: called with the exception of a task that failed.
    """

    def __init__(
        self,
        peer: Peer,
        address: Address,
        *,
        on_connect: Callable[[Peer], None],
        on_message: Callable[[Peer, Any], None],
        on_refused: Callable[[Any, InvalidRequest], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.peer = peer
        self._dealer = AsyncDealer(
            address.endpoint(peer),
            address.identity,
            address.decoder(peer),
            on_connect=lambda: on_connect(peer),
        )
        self._on_message = on_message
        self._on_refused = on_refused
        self._on_broken = on_broken
        self._waiting: deque[Any] = deque()
        self._has_waiting = asyncio.Event()
        self._is_closed = False
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._write())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def send(self, message: Any) -> None:
        """Send as soon as the queue has room; the order is kept."""
        self._waiting.append(message)
        self._has_waiting.set()

    async def close(self) -> None:
        """End both tasks and disconnect."""
        # A cancellation alone does not do: asyncio.wait_for of Python 3.11 loses one that comes
        # together with the result.
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._dealer.close()

    async def _read(self) -> None:
        while not self._is_closed:
            for _ in range(_MAX_FRAMES_IN_A_ROW):
                self._on_message(self.peer, await self._dealer.receive())
            await asyncio.sleep(0)

    async def _write(self) -> None:
        while not self._is_closed:
            await self._has_waiting.wait()
            while self._waiting and not self._is_closed:
                await self._send_first()
            self._has_waiting.clear()

    async def _send_first(self) -> None:
        try:
            await self._dealer.send(self._waiting[0])
        except ChannelTimeout:
            return  # still full: the session decides how long a request may wait
        except InvalidRequest as error:
            self._on_refused(self._waiting[0], error)
        self._waiting.popleft()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_broken(error)
