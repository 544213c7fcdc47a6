"""All children of one tree: who runs, who is due to be replaced, how each one last ended.

Mechanism without policy: the fleet starts, reaps and signals; what a death means is decided by
the supervisor.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from hybridgen.clock import Clock
from hybridgen.ipc.board import ProcessState, Role
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.launch.child import Child, spawn
from hybridgen.launch.placement import Placement, apply
from hybridgen.launch.plan import TreePlan, WorkerPlan
from hybridgen.launch.segments import TreeSegments
from hybridgen.messages import DrainWorker, Message, WorkerSpec


@dataclass
class Member:
    """A place in the tree and the process that fills it, if any."""

    plan: WorkerPlan
    child: Child | None = None
    num_spawns: int = 0
    last_exit: str = ""
    due_s: float | None = None
    """When the next replacement is to be started."""

    @property
    def is_ready(self) -> bool:
        """The process is there and has reported ready."""
        return self.child is not None and self.child.state is ProcessState.READY

    @property
    def state_name(self) -> str:
        """For `hybridgen ps`."""
        if self.child is not None:
            return self.child.state.name.lower()
        return "waiting" if self.due_s is not None else "exited"


class Fleet:
    """The children of ``plan``.

    Args:
        plan: which processes.
        instance: short hex name of the tree.
        runtime_dir: where the sockets are.
        segments: what children inherit.
        placement: CPUs by name.
        clock: for due times.
    """

    def __init__(
        self,
        plan: TreePlan,
        *,
        instance: str,
        runtime_dir: str,
        segments: TreeSegments,
        placement: Placement,
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._instance = instance
        self._runtime_dir = runtime_dir
        self._segments = segments
        self._placement = placement
        self._clock = clock
        self._doorbells = {
            worker.name: Doorbell.create()
            for worker in plan.workers
            if worker.role is Role.DETOKENIZER
        }
        self.members = {worker.name: Member(worker) for worker in plan.workers}
        #: Counts changes of the set of running children.
        self.version = 0

    @property
    def children(self) -> list[Child]:
        """Those that run."""
        return [m.child for m in self.members.values() if m.child is not None]

    @property
    def is_complete(self) -> bool:
        """Every member has reported ready."""
        return all(member.is_ready for member in self.members.values())

    def pool(self, role: Role) -> list[Member]:
        """All members of one role."""
        return [member for member in self.members.values() if member.plan.role is role]

    def start(self, member: Member) -> None:
        """Spawn the member's next incarnation."""
        member.due_s = None
        member.num_spawns += 1
        plan = member.plan
        line = self._segments.board.line(plan.board_index)
        line.begin(0, 0, plan.role, plan.index, member.num_spawns)
        cpus = self._placement.cpus.get(plan.name, [])
        spec = WorkerSpec(
            role=plan.role.label,
            index=plan.index,
            incarnation=member.num_spawns,
            instance=self._instance,
            entry=plan.entry,
            supervisor_pid=os.getpid(),
            config=self._plan.config,
            model_path=self._plan.model_path,
            runtime_dir=self._runtime_dir,
            segment_fds=self._segments.fds,
            doorbell_fds={name: bell.fileno() for name, bell in self._doorbells.items()},
            worker_names=self._plan.worker_names,
            board_index=plan.board_index,
            cpus=cpus,
        )
        member.child = spawn(spec, plan)
        apply(member.child.pid, plan.name, cpus)
        self.version += 1

    def start_due(self) -> None:
        """Spawn every replacement whose time has come."""
        now_s = self._clock()
        for member in self.members.values():
            if member.due_s is not None and member.due_s <= now_s:
                self.start(member)

    def next_due_s(self) -> float | None:
        """When the next replacement is to be started, on the clock; None when none waits."""
        return min((m.due_s for m in self.members.values() if m.due_s is not None), default=None)

    def bury(self, child: Child) -> Member:
        """Reap an ended child and say so on the board, whose line has no other writer now."""
        member = self.members[child.plan.name]
        member.last_exit = child.reap()
        if child.failure is not None:
            member.last_exit = f"{member.last_exit}: {child.failure.error.message}"
        member.child = None
        self._segments.board.line(child.plan.board_index).set_state(ProcessState.EXITED)
        self.version += 1
        return member

    def order_pool(self, role: Role, message: Message, fds: list[int]) -> None:
        """Send an order with descriptors to every running process of one role."""
        for member in self.pool(role):
            if member.child is not None:
                member.child.order(message, fds)

    def ask_pool_to_exit(self, role: Role) -> None:
        """Let the processes of one role finish what is in hand, without a hurry, and exit."""
        for member in self.pool(role):
            member.due_s = None
            if member.child is not None and member.child.order(DrainWorker()):
                member.child.state = ProcessState.DRAINING

    def ask_to_exit(self) -> None:
        """Tell all children to finish what is in hand and exit; cancels replacements."""
        for member in self.members.values():
            member.due_s = None
        for child in self.children:
            child.order(DrainWorker())
            # Wakes a child out of a wait on shared memory; ends one that has no handler yet.
            child.signal(signal.SIGTERM)
            child.state = ProcessState.DRAINING

    def kill(self) -> None:
        """SIGKILL whatever still runs."""
        for child in self.children:
            child.signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill and reap everything, release the doorbells: the last act on every exit path."""
        self.kill()
        for child in self.children:
            self.bury(child)
        for bell in self._doorbells.values():
            bell.close()
