"""The tree that a chaos run has started, and the only one that it will ever strike.

Before a signal is sent, the victim must be the supervisor that was started here or a child of it,
and the signal goes through a pidfd, so that it can reach nobody else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from hybridgen.client.async_client import AsyncClient
from hybridgen.config import Config
from hybridgen.errors import InternalError, PeerGone
from hybridgen.ipc.segment import SHM_DIR
from hybridgen.launch.chaos.history import Blow, Holdings
from hybridgen.launch.chaos.tree_log import Death, TreeLog
from hybridgen.launch.tree import start_tree

ANY_NUMBER = 1_000_000


class OwnTree:
    """A started tree. Call from a thread that may block.

    Args:
        config: of the tree; it listens on this machine only.
        log_path: where its standard error goes.
        environment: further variables of its processes.

    Raises:
        HybridGenError: why it cannot start.
    """

    def __init__(
        self, config: Config, log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        with log_path.open("ab") as log:
            self.handle = start_tree(
                config, quiet=False, log_fd=log.fileno(), environment=environment
            )
        self.uri = self.handle.uri
        self.log = TreeLog(log_path)
        #: From the wall clock, in which the log counts, to the clock of everything else.
        self._to_monotonic_s = time.monotonic() - time.time()

    def strike(self, name: str, pid: int, signum: signal.Signals) -> Blow:
        """Send a signal to a process of this tree.

        Raises:
            InternalError: the process is not of this tree.
            PeerGone: it has ended already.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise PeerGone("the victim has ended before", value=name) from None
        try:
            self._check_own(name, pid)
            at_s = time.monotonic()
            signal.pidfd_send_signal(pidfd, signum)
        except ProcessLookupError:
            raise PeerGone("the victim has ended before", value=name) from None
        finally:
            os.close(pidfd)
        return Blow(at_s, name, signum.name)

    def _check_own(self, name: str, pid: int) -> None:
        if pid == self.handle.pid:
            return
        try:
            parent = psutil.Process(pid).ppid()
        except psutil.NoSuchProcess:
            raise PeerGone("the victim has ended before", value=name) from None
        if parent != self.handle.pid:
            raise InternalError("that process is not of the tree under test", value=name)

    def follow(self, blow: Blow, incarnation: int) -> None:
        """Fill in what the log says by now about the death of that incarnation."""
        for death in self.log.deaths:
            if death.name == blow.name and death.incarnation == incarnation:
                blow.detected_s = death.at_s + self._to_monotonic_s
        for note in reversed(self.log.notes):  # it may have been told twice
            if note.name == blow.name and note.incarnation == incarnation:
                blow.noted_s = note.at_s + self._to_monotonic_s
        for back in self.log.returns:
            if back.name == blow.name and back.incarnation > incarnation:
                blow.whole_s = back.at_s + self._to_monotonic_s
                return

    def blow_of(self, death: Death) -> Blow:
        """A death that nobody here has caused: a fault of the process's own."""
        own = [f.at_s for f in self.log.faults if f.name == death.name and f.at_s <= death.at_s]
        at_s = max(own, default=death.at_s)
        blow = Blow(at_s + self._to_monotonic_s, death.name, death.how)
        self.follow(blow, death.incarnation)
        return blow

    def stop(self) -> int:
        """End it; the exit code."""
        return self.handle.stop(0.0)

    async def holdings(self, client: AsyncClient) -> Holdings:
        """What the tree holds now."""
        health = await client.health()
        listing = await client.ps()
        processes = {p.name: p.pid for p in listing.processes if p.pid}
        own = psutil.Process(self.handle.pid)
        num_fds, num_threads = {}, {}
        for name, pid in processes.items():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just died
                process = psutil.Process(pid)
                num_fds[name], num_threads[name] = process.num_fds(), process.num_threads()
        zombies = [c for c in own.children() if c.status() == psutil.STATUS_ZOMBIE]
        return Holdings(
            num_free_slots=health.num_free_slots,
            num_free_blocks=health.num_free_blocks,
            num_fds=num_fds,
            num_threads=num_threads,
            num_zombies=len(zombies),
            shm_names=shm_names(self.handle.pid),
        )


def shm_names(pid: int) -> list[str]:
    """Entries of /dev/shm that the process ``pid`` has left."""
    return sorted(path.name for path in SHM_DIR.glob(f"hybridgen.{pid}.*"))


def free_port() -> int:
    """A TCP port of this machine that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
