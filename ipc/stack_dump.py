"""Python stacks of a process that does not answer, taken by a signal.

The process registers a memory file of its own; the handler, in C, writes the stacks of all its
threads there whatever they are doing, native code included. Whoever watches it (same user) sends
``DUMP_SIGNAL`` and reads the file through /proc a moment later. A process that is stopped, or deep
in the kernel, leaves it empty.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
from typing import Final

DUMP_SIGNAL: Final = signal.SIGUSR1
MAX_STACK_BYTES: Final = 64 << 10
_FILE: Final = "hybridgen-stacks"


def register() -> None:
    """Let the calling process answer ``DUMP_SIGNAL`` from now on, until it ends."""
    fd = os.memfd_create(_FILE)
    # Readers empty the file: what comes next must begin where it ends then.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    faulthandler.register(DUMP_SIGNAL, file=fd, all_threads=True)


def is_registered(pid: int) -> bool:
    """Whether the process would answer; any other one would be ended by the signal."""
    return _find(pid) is not None


def take(pid: int) -> str:
    """What the process wrote since the last call; empty when it did not, or is gone."""
    path = _find(pid)
    if path is None:
        return ""
    try:
        with open(path, "r+b") as stacks:
            dumped = stacks.read(MAX_STACK_BYTES)
            stacks.truncate(0)
    except OSError:  # it has ended meanwhile
        return ""
    return dumped.decode("utf-8", "replace")


def _find(pid: int) -> str | None:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                if os.readlink(entry.path).startswith(f"/memfd:{_FILE}"):
                    return entry.path
    except OSError:  # it has ended, or belongs to somebody else
        return None
    return None
