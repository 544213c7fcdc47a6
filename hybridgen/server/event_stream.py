"""An answer as server-sent events, at the pace of its reader."""

from __future__ import annotations

import asyncio
from types import TracebackType

from hybridgen.server.alarms import Alarms
from hybridgen.server.client_watch import ClientWatch
from hybridgen.server.counters import Counters
from hybridgen.server.exchange import Exchange
from hybridgen.server.refusal import Header

_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies that would collect the answer
]
#: Not to spin where the limit is 0.
_MIN_LOOK_S = 0.02


def slow_reader_alarms(max_unread_s: float) -> Alarms[EventStream]:
    """What looks after all streams whose frames may stay unread for so long."""
    return Alarms(max(max_unread_s / 2, _MIN_LOOK_S), EventStream.look)


class EventStream:
    """Sends frames one after the other; nothing is kept here while the client does not read.

    Nothing is sent before the first frame: until then the answer can still become an error with
    its own status. A look every so often, not one for every frame, ends the work for a client that
    leaves a frame unread for ``max_unread_s`` (and at most half as much again).
    """

    def __init__(
        self,
        exchange: Exchange,
        watch: ClientWatch,
        counters: Counters,
        max_unread_s: float,
        alarms: Alarms[EventStream],
    ) -> None:
        self._exchange = exchange
        self._watch = watch
        self._counters = counters
        self._max_unread_s = max_unread_s
        self._loop = asyncio.get_running_loop()
        self._alarms = alarms
        self._sending_since_s: float | None = None

    async def __aenter__(self) -> EventStream:
        self._alarms.set(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._alarms.call_off(self)

    async def send(self, frame: bytes, *, is_last: bool = False) -> None:
        """Send a frame; waits while the client does not read."""
        self._sending_since_s = self._loop.time()
        if not self._exchange.is_started:
            self._counters.streams += 1
            await self._exchange.start(200, _HEADERS)
        await self._exchange.send_body(frame, is_last=is_last)
        self._sending_since_s = None

    def look(self) -> None:
        """Interrupt the work if its client does not read, else look again later."""
        since_s = self._sending_since_s
        if since_s is not None and self._loop.time() - since_s >= self._max_unread_s:
            self._watch.interrupt_slow(self._max_unread_s)
        else:
            self._alarms.set(self)
