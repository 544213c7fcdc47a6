"""Streams and events, typed: torch leaves theirs untyped."""

from __future__ import annotations

from typing import Any, cast

import torch

from hybridgen.models.cuda.driver import create_stream


def make_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """A stream that shares no queue of the device with another; it lives as long as the process.

    The device has few queues, dealt over all streams of the process, and torch makes its streams
    by the dozen: a copy in the queue of a stream that waits for samplers would wait with it, while
    these wait for the copy. So streams are made one by one, here, and only as many as needed.
    They are never given back: torch's allocators look at the streams that memory was used on.

    Args:
        device: where.
        priority: of programs that could start, those of the lower number go first.
    """
    make: Any = torch.cuda.ExternalStream
    return cast("torch.cuda.Stream", make(create_stream(priority), device=device))


def is_through(stream: torch.cuda.Stream) -> bool:
    """Whether all that was enqueued is done; never waits."""
    query: Any = stream.query
    return bool(query())


class Mark:
    """A place in a stream that the host can look for.

    Args:
        is_timed: the device notes when it comes there.
    """

    def __init__(self, *, is_timed: bool = False) -> None:
        self._event: Any = None
        self._is_timed = is_timed

    def record(self, stream: torch.cuda.Stream) -> None:
        """Put it behind all that was enqueued."""
        if self._event is None:
            make: Any = torch.cuda.Event
            self._event = make(enable_timing=self._is_timed)
        self._event.record(stream)

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Let what is enqueued on ``stream`` from now on wait until this place is reached."""
        if self._event is not None:
            wait: Any = stream.wait_event
            wait(self._event)

    def is_reached(self) -> bool:
        """Whether the device is past it (or it is nowhere); never waits."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Wait until the device is past it. Not on the decode path."""
        if self._event is not None:
            self._event.synchronize()

    def ms_since(self, earlier: Mark) -> float:
        """Milliseconds of the device from there to here; both timed and reached. Never waits."""
        if self._event is None or earlier._event is None:
            return 0.0
        return float(earlier._event.elapsed_time(self._event))
