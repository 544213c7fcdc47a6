"""A real process tree for integration tests, with the means to kill parts of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

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

    def pid_of(self, name: str) -> int:
        """Process id of ``sampler-0`` and the like."""
        return next(p.pid for p in self.client.ps().processes if p.name == name)

    def is_up(self, name: str) -> bool:
        """The process is ready."""
        return any(p.name == name and p.state == "ready" for p in self.client.ps().processes)

    def kill(self, name: str, signum: int = signal.SIGKILL) -> int:
        """Send ``signum`` to a process of the tree; its pid."""
        pid = self.pid_of(name)
        os.kill(pid, signum)
        return pid

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
