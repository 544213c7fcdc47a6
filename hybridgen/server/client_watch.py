"""Ends the work for a client that has left, or that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from hybridgen.errors import SlowReader
from hybridgen.server.exchange import Exchange
from hybridgen.server.refusal import ClientGone


class ClientWatch:
    """An async context manager around the work for one client whose body was read.

    The server under the application never fails a send to a client that is gone: only ``receive``
    tells. So a task waits there, and interrupts the work at once, whatever it waits for.

    Raises (on leaving):
        ClientGone: in place of the interruption.
        SlowReader: likewise, after ``interrupt_slow``.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._work: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._make_error: Callable[[], Exception] | None = None

    async def __aenter__(self) -> ClientWatch:
        self._work = asyncio.current_task()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._make_error is None or self._work is None:
            return
        if self._work.uncancel() == 0 and exc_type is asyncio.CancelledError:
            raise self._make_error() from None

    def interrupt_slow(self, timeout_s: float) -> None:
        """The client has not read for ``timeout_s``: end the work."""
        self._interrupt(
            lambda: SlowReader(
                "the client does not read its stream",
                limit=f"{timeout_s:g} s for a frame",
                remedy="Read the stream as it comes",
            )
        )

    async def _watch(self) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass  # a body that nobody asked for
        self._interrupt(ClientGone)

    def _interrupt(self, make_error: Callable[[], Exception]) -> None:
        if self._make_error is None and self._work is not None:
            self._make_error = make_error
            self._work.cancel()
