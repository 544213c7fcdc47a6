"""Streams and events, typed: torch leaves theirs untyped."""

from __future__ import annotations

from typing import Any, cast

import torch


def make_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """A stream; of programs that could start, those of the lower priority number go first."""
    stream: Any = torch.cuda.Stream
    return cast("torch.cuda.Stream", stream(device, priority=priority))


def is_through(stream: torch.cuda.Stream) -> bool:
    """Whether all that was enqueued is done; never waits."""
    query: Any = stream.query
    return bool(query())


class Mark:
    """A place in a stream that the host can look for."""

    def __init__(self) -> None:
        self._event: Any = None

    def record(self, stream: torch.cuda.Stream) -> None:
        """Put it behind all that was enqueued."""
        if self._event is None:
            make: Any = torch.cuda.Event
            self._event = make()
        self._event.record(stream)

    def is_reached(self) -> bool:
        """Whether the device is past it (or it is nowhere); never waits."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Wait until the device is past it. Not on the decode path."""
        if self._event is not None:
            self._event.synchronize()
