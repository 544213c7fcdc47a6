"""A running request of a ``Client``."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from hybridgen.client.chunk import StreamChunk
from hybridgen.client.collector import Collector
from hybridgen.client.event import End
from hybridgen.errors import Cancelled
from hybridgen.request import Prompt, RequestOutput


class Stream:
    """Iterates over the chunks of a request; as a context manager it cancels what is left.

    Not for several threads at a time, except ``cancel`` and ``close``. What arrives before it is
    read is kept here; that is at most the text of this one request.
    """

    def __init__(
        self, prompt: Prompt, cancel: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        self._cancel = cancel
        self._abandon = abandon
        self._arrived: SimpleQueue[StreamChunk | End] = SimpleQueue()
        self._collector = Collector(prompt)
        self._end: End | None = None
        # Called by the pump for every chunk: no layer in between.
        self.take: Callable[[StreamChunk], None] = self._arrived.put
        self.end: Callable[[End], None] = self._arrived.put

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> StreamChunk:
        """The next chunk; blocks until there is one.

        Raises:
            StopIteration: the request has ended well (or was cancelled by ``cancel``).
            HybridGenError: the typed error that ended it.
        """
        if self._end is None:
            item = self._arrived.get()
            if isinstance(item, StreamChunk):
                self._collector.add(item)
                return item
            self._end = item
        if self._end.error is not None:
            raise self._end.error
        raise StopIteration

    def result(self) -> RequestOutput:
        """Wait for the end and return the whole request, chunks read before included.

        Raises:
            HybridGenError: the typed error that ended it.
        """
        while self._end is None:
            item = self._arrived.get()
            if isinstance(item, StreamChunk):
                self._collector.add(item)
            else:
                self._end = item
        return self._collector.output(self._end)

    def cancel(self) -> None:
        """Ask the server to stop: the stream then ends with the text so far, without an error."""
        self._cancel()

    def close(self) -> None:
        """Cancel if it still runs, and expect nothing more of it; whoever reads it is woken."""
        self._abandon()
        self.end(End(finish_reason="cancelled", error=Cancelled("the stream was closed")))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
