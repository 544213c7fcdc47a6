"""The supervisor's desk for `hybridgen ps` and `hybridgen stop`: a socket of mode 0600."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from hybridgen.clock import Clock
from hybridgen.ipc.board import Board, Role
from hybridgen.ipc.channel import Router
from hybridgen.launch.fleet import Fleet, Member
from hybridgen.launch.plan import TreePlan
from hybridgen.launch.rings import ring_fills
from hybridgen.messages import (
    ListProcesses,
    ProcessInfo,
    ProcessList,
    StopAccepted,
    StopTree,
)

logger = logging.getLogger(__name__)


#: Admin orders are short; whoever sends more is disconnected.
MAX_FRAME_BYTES = 64 * 1024


class AdminDesk:
    """Answers admin orders.

    Args:
        socket: bound to the admin endpoint.
        plan: for what does not change.
        fleet: the children.
        board: their counters.
        instance: short hex name of the tree.
        cgroup: folder of its control groups; empty when it has none.
        clock: seconds that never jump.
    """

    def __init__(
        self,
        socket: Router,
        plan: TreePlan,
        *,
        fleet: Fleet,
        board: Board,
        instance: str,
        cgroup: str,
        clock: Clock,
    ) -> None:
        self.socket = socket
        self._plan = plan
        self._fleet = fleet
        self._board = board
        self._instance = instance
        self._cgroup = cgroup
        self._clock = clock
        self._started_s = clock()
        self._self = psutil.Process()

    def serve(self, is_ready: bool) -> list[StopTree]:
        """Answer everything that waits.

        Returns:
            The stop orders among it, already confirmed to whoever sent them.
        """
        stops: list[StopTree] = []
        while (received := self.socket.receive()) is not None:
            identity, order = received
            if isinstance(order, ListProcesses):
                self.socket.send(identity, self.processes(is_ready, order.request_id))
            elif isinstance(order, StopTree):
                self.socket.send(identity, StopAccepted(order.request_id))
                stops.append(order)
        self._board.line(0).set("corrupt_frames", self.socket.num_corrupt + self._fleet.num_corrupt)
        return stops

    def processes(self, is_ready: bool, request_id: bytes = b"") -> ProcessList:
        """The tree as it is now."""
        return ProcessList(
            request_id=request_id,
            instance=self._instance,
            model=self._plan.config.model.served_model_name or self._plan.model.name,
            device=self._plan.config.device.device,
            uptime_s=self._clock() - self._started_s,
            is_ready=is_ready,
            shm_bytes=self._plan.shm_bytes,
            cgroup=self._cgroup,
            processes=[
                self._describe_self(),
                *(self._describe(member) for member in self._fleet.members.values()),
            ],
        )

    def _describe_self(self) -> ProcessInfo:
        seen = _measure(self._self.pid)
        return ProcessInfo(
            name=f"{Role.SUPERVISOR.label}-0",
            role=Role.SUPERVISOR.label,
            index=0,
            pid=self._self.pid,
            incarnation=1,
            state="ready",
            restarts=0,
            cpus=list(seen.cpus),
            rss_bytes=seen.rss_bytes,
            cpu_time_s=seen.cpu_time_s,
            progress=0,
            progress_age_s=0.0,  # it has just answered
            counters=self._board.snapshot(0).counters,
        )

    def _describe(self, member: Member) -> ProcessInfo:
        plan, child = member.plan, member.child
        seen = self._board.snapshot(plan.board_index)
        use = _Use() if child is None else _measure(child.pid)
        age_s = max(0.0, self._clock() - seen.progress_ns / 1e9)
        return ProcessInfo(
            name=plan.name,
            role=plan.role.label,
            index=plan.index,
            pid=0 if child is None else child.pid,
            incarnation=member.num_spawns,
            state=member.state_name,
            restarts=max(0, member.num_spawns - 1),
            cpus=list(use.cpus),
            rss_bytes=use.rss_bytes,
            cpu_time_s=use.cpu_time_s,
            progress=seen.progress,
            progress_age_s=None if child is None else age_s,
            last_exit=member.last_exit,
            rings=[] if child is None else ring_fills(plan.role, seen.counters, self._plan),
            counters=seen.counters,
            histograms={
                name: list(counts.buckets)
                for name, counts in self._board.histograms(plan.board_index).items()
            },
        )


class _Use(NamedTuple):
    """What the system says about a process."""

    cpus: Sequence[int] = ()
    """Those it may run on."""
    rss_bytes: int = 0
    cpu_time_s: float = 0.0


def _measure(pid: int) -> _Use:
    """Nothing for a process that has just ended, or cannot be looked at."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return _Use(
                process.cpu_affinity() or [], process.memory_info().rss, times.user + times.system
            )
    except (psutil.Error, OSError):  # or while this process may open nothing more
        return _Use()
