"""Where the events of one request go."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Protocol

from hybridgen.client.chunk import StreamChunk
from hybridgen.client.collector import Collector
from hybridgen.client.event import End
from hybridgen.request import Prompt, RequestOutput


class Sink(Protocol):
    """Called by the pump: chunks in order, then one end. Must neither block nor raise."""

    def take(self, chunk: StreamChunk) -> None:
        """The next piece of text."""

    def end(self, end: End) -> None:
        """Nothing follows."""


class Completion:
    """A sink that wakes its owner once, when the request has ended.

    Args:
        done: where the completion puts itself at the end.
        index: the owner's mark.
    """

    def __init__(self, prompt: Prompt, done: SimpleQueue[Completion], index: int = 0) -> None:
        self.index = index
        self._collector = Collector(prompt)
        self._done = done
        self._end: End | None = None

    def take(self, chunk: StreamChunk) -> None:
        """Keep the next piece."""
        self._collector.add(chunk)

    def end(self, end: End) -> None:
        """Keep the end and tell the owner."""
        self._end = end
        self._done.put(self)

    def result(self) -> RequestOutput:
        """The finished request; call it once ``done`` has brought this completion.

        Raises:
            HybridGenError: the typed error that ended it.
        """
        if self._end is None:
            raise RuntimeError("the request has not ended yet")
        return self._collector.output(self._end)
