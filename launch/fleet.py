"""All children of one tree: who runs, who is due to be replaced, how each one last ended.

Mechanism without policy: the fleet starts, reaps and signals; what a death means is decided by
the supervisor.
"""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import dataclass

from hybridgen.clock import Clock
from hybridgen.errors import IpcError, StartFailed
from hybridgen.ipc.board import ProcessState, Role
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.pulse import Served
from hybridgen.launch.cgroup import TreeGroups
from hybridgen.launch.child import Child, spawn
from hybridgen.launch.listener import Listener
from hybridgen.launch.placement import Placement, apply
from hybridgen.launch.plan import TreePlan, WorkerPlan
from hybridgen.launch.segment_plan import RING_NAMES
from hybridgen.launch.segments import TreeSegments
from hybridgen.launch.standby import Standby
from hybridgen.messages import DrainWorker, Message, ReplaceRing, StandBy, WorkerSpec

logger = logging.getLogger(__name__)

#: A process that the system would not give is asked for again after this.
RETRY_S = 1.0
#: Who maps the logit ring.
RING_ROLES = frozenset({Role.GPU, Role.SAMPLER})


@dataclass
class Member:
    """A place in the tree and the process that fills it, if any."""

    plan: WorkerPlan
    child: Child | None = None
    num_spawns: int = 0
    last_exit: str = ""
    due_s: float | None = None
    """When the next replacement is to be started."""
    is_budget_spent: bool = False
    """The replacement has to wait until its pool may restart again."""
    stands_still: bool = False
    """The process there was found not to move (``hang_watch``)."""
    served: Served | None = None
    """Whom the last process that ended there was working for."""

    @property
    def name(self) -> str:
        """``role-index``."""
        return self.plan.name

    @property
    def has_reported_ready(self) -> bool:
        """The process is there and has reported ready."""
        return self.child is not None and self.child.state is ProcessState.READY

    @property
    def may_be_loading(self) -> bool:
        """It has the time of a start to report ready; one that waited had that before."""
        return self.child is not None and not (self.has_reported_ready or self.child.has_waited)

    @property
    def is_ready(self) -> bool:
        """The process has reported ready, and it moves."""
        return self.has_reported_ready and not self.stands_still

    @property
    def role(self) -> Role:
        """What the process is for."""
        return self.plan.role

    @property
    def loaded(self) -> float:
        """How far a start is, 0 … 1."""
        if self.is_ready or self.child is None:
            return float(self.is_ready)
        return self.child.load_fraction

    @property
    def state_name(self) -> str:
        """For `hybridgen ps`."""
        if self.child is not None:
            return "unhealthy" if self.stands_still else self.child.state.name.lower()
        if self.is_budget_spent:
            return "degraded"
        return "waiting" if self.due_s is not None else "exited"


class Fleet:
    """The children of ``plan``.

    Args:
        plan: which processes.
        instance: short hex name of the tree.
        runtime_dir: where the sockets are.
        segments: what children inherit.
        placement: CPUs by name.
        groups: the tree's control groups, if it has any.
        listener: what the gateways accept on, if there are any.
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
        groups: TreeGroups | None,
        listener: Listener | None,
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._instance = instance
        self._runtime_dir = runtime_dir
        self._segments = segments
        self._placement = placement
        self._groups = groups
        self._listener = listener
        self._clock = clock
        self._doorbells = {
            worker.name: Doorbell.create()
            for worker in plan.workers
            if worker.role is Role.DETOKENIZER
        }
        self.members = {worker.name: Member(worker) for worker in plan.workers}
        self._ring_epoch = 1  # the gpu incarnation that the ring was made for
        self.standbys = {
            worker.role: Standby(worker, self._order_to_stand_by(worker), clock)
            for worker in plan.workers
            if worker.standby_entry and worker.index == 0
        }
        #: Counts changes of the set of running children.
        self.version = 0
        self._num_corrupt = 0  # of children that are gone

    @property
    def children(self) -> list[Child]:
        """Those that run."""
        return [m.child for m in self.members.values() if m.child is not None]

    @property
    def num_corrupt(self) -> int:
        """Frames of children that were no message, dropped."""
        return self._num_corrupt + sum(child.num_corrupt for child in self.children)

    @property
    def can_serve(self) -> bool:
        """Every role has somebody who works, and no step waits for a sampler that stands still."""
        present = {member.role for member in self.members.values() if member.is_ready}
        roles = {member.role for member in self.members.values()}
        is_held_up = any(member.stands_still for member in self.pool(Role.SAMPLER))
        return roles == present and not is_held_up

    def pool(self, role: Role) -> list[Member]:
        """All members of one role."""
        return [member for member in self.members.values() if member.plan.role is role]

    def start_all(self) -> None:
        """Spawn the first incarnations; gateways first, to tell clients how far the others are."""
        for member in sorted(
            self.members.values(), key=lambda member: member.plan.role is not Role.GATEWAY
        ):
            self.start(member)

    def start(self, member: Member) -> None:
        """Spawn the member's next incarnation.

        Raises:
            StartFailed: no process is to be had; the member is as before.
            IpcError: no ring is to be had for a gpu process; the same.
        """
        member.due_s = None
        plan = member.plan
        incarnation = member.num_spawns + 1
        if plan.role is Role.GPU and incarnation != self._ring_epoch:
            self._replace_ring(incarnation)
        line = self._segments.board.line(plan.board_index)
        line.begin(0, 0, plan.role, plan.index, incarnation)
        cpus = self._placement.cpus.get(plan.name, [])
        spec = WorkerSpec(
            role=plan.role.label,
            index=plan.index,
            incarnation=incarnation,
            instance=self._instance,
            entry=plan.entry,
            supervisor_pid=os.getpid(),
            config=self._plan.config,
            model_path=self._plan.model_path,
            runtime_dir=self._runtime_dir,
            segment_fds=self._segment_fds(plan.role),
            doorbell_fds={name: bell.fileno() for name, bell in self._doorbells.items()},
            worker_names=self._plan.worker_names,
            board_index=plan.board_index,
            cpus=cpus,
            listener_fd=self._listener_fd(plan.role),
        )
        standby = self.standbys.get(plan.role)
        waiting = standby.employ(spec, plan) if standby is not None else None
        member.child = waiting or spawn(spec, plan)
        member.num_spawns = incarnation
        if self._groups is not None:
            self._groups.place(member.child.pid, plan.role)  # sets the mask, so before the next
        apply(member.child.pid, plan.name, cpus)
        self.version += 1

    def _replace_ring(self, epoch: int) -> None:
        """The logit ring belongs to the dead gpu process: replaced with it, never repaired."""
        fds = self._segments.replace_ring(epoch)
        self._ring_epoch = epoch
        self.dismiss_standbys(Role.SAMPLER)  # it has the descriptors of the old one
        names = sorted(fds)
        self.order_pool(Role.SAMPLER, ReplaceRing(epoch, names), [fds[name] for name in names])

    def _order_to_stand_by(self, worker: WorkerPlan) -> StandBy:
        return StandBy(
            title=f"hybridgen:{self._instance}:standby-{worker.role.label}",
            entry=worker.standby_entry,
            supervisor_pid=os.getpid(),
            model_path=self._plan.model_path,
            config=self._plan.config,
        )

    def _segment_fds(self, role: Role) -> dict[str, int]:
        """The ring is for those alone who are given the next one: others would hold it for ever."""
        fds = self._segments.fds
        if role in RING_ROLES:
            return fds
        return {name: fd for name, fd in fds.items() if name not in RING_NAMES}

    def _listener_fd(self, role: Role) -> int:
        if role is not Role.GATEWAY or self._listener is None:
            return -1
        return self._listener.fileno()

    def start_due(self) -> None:
        """Spawn every replacement whose time has come."""
        now_s = self._clock()
        for member in self.members.values():
            if member.due_s is not None and member.due_s <= now_s:
                self._try_start(member)
        if any(one.due_s is not None and one.due_s <= now_s for one in self.standbys.values()):
            self.keep_standbys()

    def _try_start(self, member: Member) -> None:
        try:
            self.start(member)
        except (StartFailed, IpcError) as error:  # others may give back soon what is lacking
            logger.warning("%s: %s; again in %.0f s", member.name, error.message, RETRY_S)
            self._segments.board.line(member.plan.board_index).set_state(ProcessState.EXITED)
            member.due_s = self._clock() + RETRY_S

    def next_due_s(self) -> float | None:
        """When the next process is to be started, on the clock; None when none waits."""
        times = [standby.due_s for standby in self.standbys.values()]
        times += [member.due_s for member in self.members.values()]
        return min((time_s for time_s in times if time_s is not None), default=None)

    def has_standby(self, role: Role) -> bool:
        """A process waits for a death in that pool, or is about to."""
        return role in self.standbys and self.standbys[role].child is not None

    def keep_standbys(self) -> None:
        """Let a process wait for the next death in each pool that has one waiting."""
        bells = [bell.fileno() for bell in self._doorbells.values()]
        for role, standby in self.standbys.items():
            if standby.keep([*self._segment_fds(role).values(), *bells]):
                self.version += 1

    def dismiss_standbys(self, *roles: Role) -> None:
        """Nobody waits for a death in these pools any more."""
        for role in roles:
            self.standbys[role].dismiss()
        self.version += 1

    def bury_standby(self, role: Role) -> None:
        """The process that waited has ended by itself."""
        self.standbys[role].bury()
        self.version += 1

    def bury(self, child: Child) -> Member:
        """Reap an ended child and say so on the board, whose line has no other writer now."""
        member = self.members[child.plan.name]
        member.last_exit = child.reap()
        if child.end_reason:
            member.last_exit = f"{member.last_exit} {child.end_reason}"
        self._num_corrupt += child.num_corrupt
        member.child, member.stands_still = None, False
        board, line = self._segments.board, child.plan.board_index
        member.served = board.served(line)
        board.judge(line, stands_still=False)
        board.line(line).set_state(ProcessState.EXITED)
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

    def stop_listening(self) -> None:
        """Clients are refused as soon as the gateways have closed their copies, too."""
        if self._listener is not None:
            self._listener.close()

    def ask_to_exit(self) -> None:
        """Tell all children to finish what is in hand and exit; cancels replacements."""
        self.dismiss_standbys(*self.standbys)
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
        if self._groups is not None:
            self._groups.kill()

    def close(self) -> None:
        """Kill and reap everything, release the doorbells: the last act on every exit path."""
        self.dismiss_standbys(*self.standbys)
        self.kill()
        for child in self.children:
            self.bury(child)
        for bell in self._doorbells.values():
            bell.close()
