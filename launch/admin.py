"""The supervisor's desk for `hybridgen ps` and `hybridgen stop`: a socket of mode 0600."""

from __future__ import annotations

import logging

import psutil

from hybridgen.clock import Clock
from hybridgen.ipc.board import Board, Role
from hybridgen.ipc.channel import Router
from hybridgen.launch.fleet import Fleet, Member
from hybridgen.launch.plan import TreePlan
from hybridgen.messages import (
    ListProcesses,
    ProcessInfo,
    ProcessList,
    StopAccepted,
    StopTree,
)

logger = logging.getLogger(__name__)


class AdminDesk:
    """Answers admin orders.

    Args:
        socket: bound to the admin endpoint.
        plan: for what does not change.
        fleet: the children.
        board: their counters.
        instance: short hex name of the tree.
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
        clock: Clock,
    ) -> None:
        self.socket = socket
        self._plan = plan
        self._fleet = fleet
        self._board = board
        self._instance = instance
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
            processes=[
                self._describe_self(),
                *(self._describe(member) for member in self._fleet.members.values()),
            ],
        )

    def _describe_self(self) -> ProcessInfo:
        return ProcessInfo(
            name=f"{Role.SUPERVISOR.label}-0",
            role=Role.SUPERVISOR.label,
            index=0,
            pid=self._self.pid,
            incarnation=1,
            state="ready",
            restarts=0,
            cpus=self._self.cpu_affinity() or [],
            rss_bytes=self._self.memory_info().rss,
            progress=0,
        )

    def _describe(self, member: Member) -> ProcessInfo:
        plan, child = member.plan, member.child
        seen = self._board.snapshot(plan.board_index)
        cpus, rss_bytes = ([], 0) if child is None else _measure(child.pid)
        return ProcessInfo(
            name=plan.name,
            role=plan.role.label,
            index=plan.index,
            pid=0 if child is None else child.pid,
            incarnation=member.num_spawns,
            state=member.state_name,
            restarts=max(0, member.num_spawns - 1),
            cpus=cpus,
            rss_bytes=rss_bytes,
            progress=seen.progress,
            last_exit=member.last_exit,
            counters=seen.counters,
        )


def _measure(pid: int) -> tuple[list[int], int]:
    """(effective affinity, resident bytes); nothing for a process that has just ended."""
    try:
        process = psutil.Process(pid)
        return process.cpu_affinity() or [], process.memory_info().rss
    except psutil.Error:
        return [], 0
