"""An answer as server-sent events, at the pace of its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
#: A look costs about a microsecond; there is one per stream and pause.
_MAX_PAUSE_S = 0.125
#: Not to spin where the limit is 0.
_MIN_PAUSE_S = 0.02
#: While others wait for its place.
CROWDED_UNREAD_S = 0.5


class ReadingTime:
    """How long a client may leave a frame unread: longer while nobody waits for its place.

    Args:
        max_s: while nobody does.
        has_queue: whether requests wait to be computed.
    """

    def __init__(self, max_s: float, has_queue: Callable[[], bool]) -> None:
        self._max_s = max_s
        self._has_queue = has_queue
        self._crowded_s = min(max_s, CROWDED_UNREAD_S)
        #: Between two looks.
        self.pause_s = max(_MIN_PAUSE_S, min(_MAX_PAUSE_S, max_s / 2))
        #: At all streams whose frames may stay unread for so long.
        self.looks: Alarms[EventStream] = Alarms(self.pause_s, EventStream.look)

    def exceeded_s(self, unread_s: float, has_place: Callable[[], bool]) -> float | None:
        """The limit that ``unread_s`` reaches, if any; ``has_place``: others could have it."""
        if unread_s < self._crowded_s:
            return None
        if unread_s >= self._max_s:
            return self._max_s
        return self._crowded_s if has_place() and self._has_queue() else None


class EventStream:
    """Sends frames one after the other; nothing is kept here while the client does not read.

    Nothing is sent before the first frame: until then the answer can still become an error with
    its own status. A look every so often, not one for every frame, ends the work for a client that
    leaves a frame unread for longer than ``reading_time`` says. ``has_place`` tells whether its
    text is still being computed.
    """

    def __init__(
        self,
        exchange: Exchange,
        watch: ClientWatch,
        counters: Counters,
        reading_time: ReadingTime,
        has_place: Callable[[], bool],
    ) -> None:
        self._exchange = exchange
        self._watch = watch
        self._counters = counters
        self._reading_time = reading_time
        self._has_place = has_place
        self._loop = asyncio.get_running_loop()
        self._sending_since_s: float | None = None

    async def __aenter__(self) -> EventStream:
        self._reading_time.looks.set(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reading_time.looks.call_off(self)

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
        unread_s = 0.0 if since_s is None else self._loop.time() - since_s
        limit_s = self._reading_time.exceeded_s(unread_s, self._has_place)
        if limit_s is None:
            self._reading_time.looks.set(self)
        else:
            self._watch.interrupt_slow(limit_s)
