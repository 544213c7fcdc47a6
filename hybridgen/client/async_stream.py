"""A running request of an ``AsyncClient``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from hybridgen.client.chunk import StreamChunk
from hybridgen.client.collector import Collector
from hybridgen.client.event import End
from hybridgen.errors import Cancelled
from hybridgen.request import Prompt, RequestOutput


class AsyncStream:
    """Iterates over the chunks of a request; as a context manager it cancels what is left.

    ``await stream`` is ``await stream.result()``. One task reads a stream at a time. What arrives
    before it is read is kept here; that is at most the text of this one request.
    """

    def __init__(
        self, prompt: Prompt, cancel: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        self._cancel = cancel
        self._abandon = abandon
        self._arrived: deque[StreamChunk] = deque()
        self._collector = Collector(prompt)
        self._end: End | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> End | None:
        """The end as the server states it; None while the request runs."""
        return self._end

    def take(self, chunk: StreamChunk) -> None:
        """The next piece of text (called by the client)."""
        self._arrived.append(chunk)
        if self._waiter is not None:
            self._wake(self._waiter)

    def end(self, end: End) -> None:
        """Nothing follows (called by the client)."""
        if self._end is None:
            self._end = end
        if self._waiter is not None:
            self._wake(self._waiter)

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    async def _arrival(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("a stream is read by one task at a time")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> StreamChunk:
        """The next chunk.

        Raises:
            StopAsyncIteration: the request has ended well (or was cancelled by ``cancel``).
            HybridGenError: the typed error that ended it.
        """
        while not self._arrived:
            if self._end is None:
                await self._arrival()
            elif self._end.error is not None:
                raise self._end.error
            else:
                raise StopAsyncIteration
        chunk = self._arrived.popleft()
        self._collector.add(chunk)
        return chunk

    async def result(self) -> RequestOutput:
        """Wait for the end and return the whole request, chunks read before included.

        Raises:
            HybridGenError: the typed error that ended it.
        """
        while self._end is None:
            await self._arrival()
        while self._arrived:
            self._collector.add(self._arrived.popleft())
        return self._collector.output(self._end)

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.result().__await__()

    def cancel(self) -> None:
        """Ask the server to stop: the stream then ends with the text so far, without an error."""
        self._cancel()

    def close(self) -> None:
        """Cancel if it still runs, and expect nothing more of it; whoever reads it is woken."""
        if self._end is not None:
            return
        self._abandon()
        self.end(End(finish_reason="cancelled", error=Cancelled("the stream was closed")))

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()
