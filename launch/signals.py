"""Signals as events of the supervisor's loop: handlers only queue.

From the first thing that a start leaves behind until the last one is removed nothing else happens
at a signal. Long work before that, which leaves nothing, may be interrupted.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hybridgen.launch.exit_codes import EXIT_INTERRUPTED, EXIT_OK

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopAsked(BaseException):
    """A stop signal came before there was a tree; no error, so nobody who handles errors sees it.

    Attributes:
        exit_code: 130 for an interrupt, 0 for a request to end.
    """

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__(signum.name)
        self.exit_code = exit_code_of(signum)


def exit_code_of(signum: signal.Signals) -> int:
    """The exit code of a start that this signal ended."""
    return EXIT_INTERRUPTED if signum is signal.SIGINT else EXIT_OK


class SignalQueue:
    """A context manager; ``fileno()`` is readable when a stop signal has come."""

    def __init__(self) -> None:
        self._is_interrupting = False

    def __enter__(self) -> SignalQueue:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._old_handlers = {
            signum: signal.signal(signum, self._on_signal) for signum in STOP_SIGNALS
        }
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

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Around work that leaves nothing behind: a stop signal raises ``StopAsked`` at once."""
        try:
            self._is_interrupting = True
            self.check()
            yield
        finally:
            self._is_interrupting = False
        self.check()

    def check(self) -> None:
        """Raise ``StopAsked`` if a stop signal has come."""
        for signum in self.take():
            raise StopAsked(signum)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        """The interpreter has written the number to the wake-up descriptor already."""
        if self._is_interrupting:
            self._is_interrupting = False  # once: a second one must not disturb the way out
            raise StopAsked(signal.Signals(signum))
