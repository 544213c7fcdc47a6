"""What a process holds: shared-memory names, descriptors, children, ZeroMQ users."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

_SHM_DIR = Path("/dev/shm")
_SHM_PREFIX = "hybridgen"
# Opened once by the interpreter, a library or the test runner and kept on purpose.
_KEPT_OPEN = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/pts", "/dev/tty", "/.hypothesis/")


@dataclass(frozen=True)
class Holdings:
    """A snapshot; ``beyond`` says what came on top of an earlier one."""

    shm_names: frozenset[str]
    descriptors: frozenset[tuple[int, str]]
    children: frozenset[int]
    num_zmq_users: int

    def beyond(self, baseline: Holdings) -> list[str]:
        """One line per leaked thing."""
        return [
            *(f"/dev/shm/{name}" for name in sorted(self.shm_names - baseline.shm_names)),
            *(f"fd {fd} {to}" for fd, to in sorted(self.descriptors - baseline.descriptors)),
            *(f"child process {pid}" for pid in sorted(self.children - baseline.children)),
            *(["an open ZeroMQ socket"] if self.num_zmq_users > baseline.num_zmq_users else []),
        ]


def holdings() -> Holdings:
    """What this process holds now."""
    context = sys.modules.get("hybridgen.ipc.zmq_context")
    return Holdings(
        shm_names=frozenset(name for name in os.listdir(_SHM_DIR) if name.startswith(_SHM_PREFIX)),
        descriptors=frozenset(_descriptors()),
        children=frozenset(_children()),
        num_zmq_users=context.num_users() if context is not None else 0,
    )


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if not any(part in target for part in _KEPT_OPEN):
            found.append((int(name), target))
    return found


def _children() -> list[int]:
    pids: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{thread}/children").read_text()
        except FileNotFoundError:
            continue  # the thread ended meanwhile
        pids.extend(int(pid) for pid in text.split())
    return pids
