"""Ends the work for a client that has left, or that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from hybridgen.errors import SlowReader
from hybridgen.server.alarms import Alarms
from hybridgen.server.exchange import Exchange, Message
from hybridgen.server.refusal import ClientGone

#: What is answered sooner is not worth a watch; within 250 ms a client that left frees its place.
UNWATCHED_S = 0.1


class ClientWatch:
    """An async context manager around the work for one client whose body was read.

    The server under the application never fails a send to a client that is gone: only ``receive``
    tells, also of those who left before it was asked. What arrives there interrupts the work at
    once, whatever it waits for.

    Args:
        exchange: whose body was read.
        late: begins the watch over work that takes some time; None watches all of it.

    Raises (on leaving):
        ClientGone: in place of the interruption.
        SlowReader: likewise, after ``interrupt_slow``.
    """

    def __init__(self, exchange: Exchange, late: Alarms[ClientWatch] | None = None) -> None:
        self._exchange = exchange
        self._late = late
        self._work: asyncio.Task[object] | None = None
        self._arrival: asyncio.Future[Message] | None = None
        self._make_error: Callable[[], Exception] | None = None

    async def __aenter__(self) -> ClientWatch:
        self._work = asyncio.current_task()
        if self._late is None:
            self.begin()
        else:
            self._late.set(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._late is not None:
            self._late.call_off(self)
        arrival, self._arrival = self._arrival, None  # no cycle is left of future and callback
        if arrival is not None:
            arrival.remove_done_callback(self._arrived)
            arrival.cancel()
        work, self._work = self._work, None  # what is told from now on interrupts nothing
        if self._make_error is None or work is None:
            return
        if work.uncancel() == 0 and exc_type is asyncio.CancelledError:
            raise self._make_error() from None

    def begin(self) -> None:
        """Look from now on."""
        # The server's own future where it gives one, which spares a task.
        self._arrival = asyncio.ensure_future(self._exchange.receive())
        self._arrival.add_done_callback(self._arrived)

    def interrupt_slow(self, timeout_s: float) -> None:
        """The client has not read for ``timeout_s``: end the work."""
        self._interrupt(
            lambda: SlowReader(
                "the client does not read its stream",
                limit=f"{timeout_s:g} s for a frame",
                remedy="Read the stream as it comes",
            )
        )

    def _arrived(self, arrival: asyncio.Future[Message]) -> None:
        if arrival is not self._arrival or arrival.cancelled():
            return  # the work has ended meanwhile
        if arrival.result()["type"] == "http.disconnect":
            self._interrupt(ClientGone)
        else:  # a body that nobody asked for
            self.begin()

    def _interrupt(self, make_error: Callable[[], Exception]) -> None:
        if self._make_error is None and self._work is not None:
            self._make_error = make_error
            self._work.cancel()
