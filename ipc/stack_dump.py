"""Python stacks of a process that does not answer, taken by a signal.

The process registers a memory file of its own; the handler, in C, writes the stacks of all its
threads there whatever they are doing, native code included. Whoever watches it (same user) calls
``ask`` and, a moment later, ``read``: the file is seen through /proc. A process that is stopped, or
deep in the kernel, leaves it empty.
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
    # Whoever asks empties the file: what comes next must begin where it ends then.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    faulthandler.register(DUMP_SIGNAL, file=fd, all_threads=True)


def ask(pid: int) -> bool:
    """Have the process write its stacks; False where it can't, which the signal would end.

    What it wrote before goes now: while it writes, nothing may be taken from under its pen.
    """
    path = _find(pid)
    if path is None:
        return False
    try:
        os.truncate(path, 0)
        os.kill(pid, DUMP_SIGNAL)
    except OSError:  # it has ended meanwhile
        return False
    return True


def read(pid: int) -> str:
    """What the process has written since it was asked; empty when it did not, or is gone."""
    path = _find(pid)
    if path is None:
        return ""
    try:
        with open(path, "rb") as stacks:
            return stacks.read(MAX_STACK_BYTES).decode("utf-8", "replace")
    except OSError:  # it has ended meanwhile
        return ""


def _find(pid: int) -> str | None:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                if os.readlink(entry.path).startswith(f"/memfd:{_FILE}"):
                    return entry.path
    except OSError:  # it has ended, or belongs to somebody else
        return None
    return None
