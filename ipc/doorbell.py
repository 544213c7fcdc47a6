"""A doorbell wakes a process that sleeps in poll() on sockets, where a futex cannot."""

from __future__ import annotations

import os


class Doorbell:
    """An eventfd, made by the supervisor and inherited by those who ring and who listen.

    Rings add up until they are cleared, so any number of them is one wake-up. Clear first, look for
    work after: what was written before a ring is then always seen.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def create(cls) -> Doorbell:
        """A new doorbell, not inheritable unless passed on."""
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def ring(self) -> None:
        """Wake the listener; never blocks."""
        try:
            os.eventfd_write(self._fd, 1)
        except BlockingIOError:
            return  # 2⁶⁴-2 rings are pending: the listener is awake already

    def clear(self) -> bool:
        """Take all rings back; whether there was one."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return False
        return True

    def fileno(self) -> int:
        """Descriptor, readable while a ring is pending."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor; safe to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
