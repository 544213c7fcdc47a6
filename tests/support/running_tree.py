"""A real process tree for integration tests, with the means to kill parts of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hybridgen.client import Client
from hybridgen.config import Config
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import TreeHandle, start_tree
from tests.support.eventually import eventually


class RunningTree:
    """A started tree, a client attached to it, and kill switches."""

    def __init__(self, handle: TreeHandle, client: Client) -> None:
        self.handle = handle
        self.client = client
        #: Where reports about hanging processes go, where a test asked for that.
        self.incidents = Path()

    def pid_of(self, name: str) -> int:
        """Process id of ``sampler-0`` and the like."""
        return next(p.pid for p in self.client.ps().processes if p.name == name)

    def is_up(self, name: str) -> bool:
        """The process is ready."""
        return any(p.name == name and p.state == "ready" for p in self.client.ps().processes)

    def state_of(self, name: str) -> str:
        """``ready``, ``waiting`` and the like."""
        return next(p.state for p in self.client.ps().processes if p.name == name)

    def kill(self, name: str, signum: int = signal.SIGKILL) -> int:
        """Send ``signum`` to a process of the tree; its pid."""
        pid = self.pid_of(name)
        os.kill(pid, signum)
        return pid

    def wait_standby(self, role: str) -> int:
        """Until a process waits to replace one of that role; its pid."""

        def waiting() -> list[int]:
            found = []
            for child in psutil.Process(self.handle.pid).children():
                with suppress(psutil.Error):  # one that has just ended
                    if any(f":standby-{role}" in word for word in child.cmdline()):
                        found.append(child.pid)
            return found

        eventually(waiting, 10.0)
        return waiting()[0]

    def num_cancelled(self) -> int:
        """Requests that ended because somebody did not want them any more, or was gone."""
        processes = self.client.ps().processes
        return sum(p.counters["cancelled"] for p in processes if p.role == "coscheduler")

    def has_cancelled(self, num_requests: int) -> bool:
        """At least so many."""
        return self.num_cancelled() >= num_requests

    def wait_replaced(self, name: str, old_pid: int, timeout_s: float = 20.0) -> None:
        """Until another incarnation of ``name`` is ready."""

        def is_replaced() -> bool:
            process = next(p for p in self.client.ps().processes if p.name == name)
            return process.pid not in (0, old_pid) and process.state == "ready"

        eventually(is_replaced, timeout_s)


@contextmanager
def running_tree(**options: object) -> Iterator[RunningTree]:
    """Start a tree with ``options`` (Config field names), stop it at the end."""
    config: Config = config_from_options(options)
    handle = start_tree(config)
    children = psutil.Process(handle.pid).children(recursive=True)
    try:
        with Client(handle.uri) as client:
            yield RunningTree(handle, client)
    finally:
        handle.stop()
        gone, alive = psutil.wait_procs(children, timeout=5)
        for process in alive:
            process.kill()
        if alive:
            raise AssertionError(f"the tree left processes behind: {alive} (gone: {len(gone)})")
