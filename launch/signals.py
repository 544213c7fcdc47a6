"""Signals as events of the supervisor's loop: handlers only queue."""

from __future__ import annotations

import signal
import socket
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalQueue:
    """A context manager; ``fileno()`` is readable when a stop signal has come."""

    def __enter__(self) -> SignalQueue:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._old_handlers = {signum: signal.signal(signum, _queued) for signum in STOP_SIGNALS}
        # A parent that ignores SIGCHLD would make exit codes unknowable.
        self._old_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._old_fd)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """For a poller."""
        return self._reader.fileno()

    def take(self) -> list[signal.Signals]:
        """All stop signals that came since the last call."""
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in numbers if number in STOP_SIGNALS]


def _queued(_signum: int, _frame: FrameType | None) -> None:
    """The interpreter has written the number to the wake-up descriptor already."""
