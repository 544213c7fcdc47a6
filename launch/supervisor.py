"""The supervisor: one poll loop over pidfds, control sockets, signals and the admin socket.

::

    STARTING ── every child ready ──► RUNNING ── stop asked ──► DRAINING ── drained ──► STOPPING
        │ a child failed                 │ budget spent            (or time is up)          │
        └────────────────────────────────┴──────────────────────────────────────────────────┤
                                                                     last child reaped ──► OVER

Drained means that the last token is with the gateways, which then pass it on and leave first.
A death is seen through the pidfd within the poll's wake-up. While RUNNING or DRAINING it is
answered by a replacement inside the group's budget; while STARTING by giving up, with the child's
own root cause. The loop sleeps until something happens or the next due time; it has no tick.
"""

from __future__ import annotations

import enum
import logging
import signal
import socket
from typing import Protocol

from hybridgen.clock import Clock, monotonic_s
from hybridgen.errors import HybridGenError, RestartBudgetSpent, StartFailed
from hybridgen.ipc.board import Role
from hybridgen.ipc.channel import Poller
from hybridgen.launch.admin import AdminDesk
from hybridgen.launch.child import Child
from hybridgen.launch.coscheduler_link import CoschedulerLink
from hybridgen.launch.exit_codes import EXIT_INTERRUPTED
from hybridgen.launch.fleet import Fleet, Member
from hybridgen.launch.plan import TreePlan
from hybridgen.launch.restart import RestartBudget, SpentAction, restart_policies
from hybridgen.launch.segments import TreeSegments
from hybridgen.launch.signals import SignalQueue
from hybridgen.messages import DrainTree, LoadProgress, ReplaceRing, WorkerDied, WorkerReady

logger = logging.getLogger(__name__)

#: The coscheduler ends the rest by itself at the drain limit; this is its time to say so.
DRAIN_SLACK_S = 1.0
#: Running requests get their typed error within this when nothing can serve them any more.
HOPELESS_DRAIN_S = 1.0
#: Children that were told to exit are killed after this.
EXIT_GRACE_S = 2.0
#: The loop never sleeps longer, so that a missed wake-up would cost little.
MAX_SLEEP_S = 60.0


class Phase(enum.Enum):
    """Where the tree is in its life."""

    STARTING = enum.auto()
    RUNNING = enum.auto()
    DRAINING = enum.auto()
    STOPPING = enum.auto()
    OVER = enum.auto()


class TreeListener(Protocol):
    """Who is told about the start (a terminal, a parent process)."""

    def child_progress(self, name: str, fact: LoadProgress) -> None:
        """A starting child reports how far it is."""

    def child_ready(self, name: str, num_ready: int, num_total: int) -> None:
        """A child reports ready for the first time."""

    def tree_ready(self) -> None:
        """All children are ready."""


class Supervisor:
    """Runs one tree until it is over.

    Args:
        plan: what to run.
        fleet: its children, none started yet.
        segments: their shared memory.
        admin: answers `ps` and `stop`.
        link: to the coscheduler.
        listener: hears about the start.
        owner: socket to the process that owns the tree; the tree ends when that one is gone.
        clock: seconds that never jump.
    """

    def __init__(
        self,
        plan: TreePlan,
        *,
        fleet: Fleet,
        segments: TreeSegments,
        admin: AdminDesk,
        link: CoschedulerLink,
        listener: TreeListener,
        owner: socket.socket | None = None,
        clock: Clock = monotonic_s,
    ) -> None:
        self._config = plan.config.server
        self._fleet = fleet
        self._segments = segments
        self._admin = admin
        self._link = link
        self._listener = listener
        self._owner = owner
        self._clock = clock
        self._budgets = {
            role: RestartBudget(policy, clock)
            for role, policy in restart_policies(self._config).items()
        }
        self._phase = Phase.STARTING
        self._deadline_s: float | None = clock() + self._config.start_timeout_s
        self._failure: HybridGenError | None = None
        self._exit_code = 0
        self._num_stop_signals = 0
        self._are_doors_closed = False
        self._poller = Poller()
        self._poller_version = -1

    def run(self) -> int:
        """Start the tree, keep it, end it. Call from the main thread.

        Returns:
            0 after an orderly stop, 130 when interrupted during the start.

        Raises:
            HybridGenError: why the tree could not start, or gave up.
        """
        with SignalQueue() as signals:
            try:
                for member in self._fleet.members.values():
                    self._fleet.start(member)
                while self._phase is not Phase.OVER:
                    self._turn(signals)
            finally:
                self._fleet.close()
        if self._failure is not None:
            raise self._failure
        return self._exit_code

    # --- the loop -------------------------------------------------------------------------------

    def _turn(self, signals: SignalQueue) -> None:
        self._watch(signals)
        ready = self._poller.poll(self._sleep_s())
        for signum in signals.take():
            self._on_signal(signum)
        for child in self._fleet.children:
            if child in ready or child.control in ready:
                self._on_child(child, has_ended=child in ready)
        for stop in self._admin.serve(self._phase is Phase.RUNNING and self._fleet.is_complete):
            self._drain(self._config.drain_timeout_s if stop.timeout_s is None else stop.timeout_s)
        if self._link.is_drained() and self._phase is Phase.DRAINING:
            self._close_doors()
        if self._owner is not None and self._owner in ready:
            self._on_owner_gone()
        self._on_time()

    def _watch(self, signals: SignalQueue) -> None:
        """Poll what there is now; built anew only when the set of children has changed."""
        if self._poller_version == self._fleet.version:
            return
        self._poller = Poller()
        for child in self._fleet.children:
            self._poller.add(child)
            if child.is_control_open:
                self._poller.add(child.control)
        self._poller.add(signals)
        self._poller.add(self._admin.socket)
        self._poller.add(self._link.socket)
        if self._owner is not None:
            self._poller.add(self._owner)
        self._poller_version = self._fleet.version

    def _sleep_s(self) -> float:
        times = [self._deadline_s, self._fleet.next_due_s(), self._link.retry_at_s]
        wake_s = min((time_s for time_s in times if time_s is not None), default=None)
        return MAX_SLEEP_S if wake_s is None else min(MAX_SLEEP_S, max(0.0, wake_s - self._clock()))

    def _on_time(self) -> None:
        self._fleet.start_due()
        self._link.flush()
        if self._phase is Phase.STOPPING and not self._fleet.children:
            self._phase = Phase.OVER
        if self._deadline_s is None or self._clock() < self._deadline_s:
            return
        if self._phase is Phase.STARTING:
            self._fail(self._start_timeout())
        elif self._phase is Phase.DRAINING:
            logger.warning("the drain limit is over; the rest is ended")
            self._stop()
        elif self._phase is Phase.STOPPING:
            self._deadline_s = None
            self._fleet.kill()

    # --- children -------------------------------------------------------------------------------

    def _on_child(self, child: Child, *, has_ended: bool) -> None:
        was_open = child.is_control_open
        name = child.plan.name
        for fact in child.take_facts():
            if isinstance(fact, LoadProgress) and self._phase is Phase.STARTING:
                self._listener.child_progress(name, fact)
            elif isinstance(fact, WorkerReady):
                self._on_ready(child)
        if has_ended:
            self._on_end(child)
        elif was_open and not child.is_control_open:
            self._poller_version = -1  # a closed socket is readable for ever

    def _on_ready(self, child: Child) -> None:
        if self._phase is Phase.STARTING:
            ready = [member.is_ready for member in self._fleet.members.values()]
            self._listener.child_ready(child.plan.name, sum(ready), len(ready))
            if all(ready):
                self._phase, self._deadline_s = Phase.RUNNING, None
                self._listener.tree_ready()
            return
        if self._phase is Phase.STOPPING:
            return  # it was still starting when the stop came
        logger.info("%s is back (incarnation %d)", child.plan.name, child.incarnation)
        if self._phase is Phase.DRAINING and child.plan.role is Role.COSCHEDULER:
            left_s = max(0.0, (self._deadline_s or 0.0) - DRAIN_SLACK_S - self._clock())
            self._link.send(DrainTree(left_s))  # its predecessor took the order with it

    def _on_end(self, child: Child) -> None:
        member = self._fleet.bury(child)
        if self._phase is Phase.STARTING:
            self._fail(_root_cause(child, member))
        elif self._are_doors_closed and child.plan.role is Role.GATEWAY:
            self._close_doors()
        elif self._phase in {Phase.RUNNING, Phase.DRAINING}:
            self._replace(child, member)

    def _replace(self, child: Child, member: Member) -> None:
        role = child.plan.role
        budget = self._budgets[role]
        decision = budget.spend(was_ready=child.ready is not None)
        gives_up = decision.is_spent and budget.policy.when_spent is SpentAction.EXIT
        logger.warning(
            "%s (pid %d, incarnation %d) %s; %s",
            child.plan.name,
            child.pid,
            child.incarnation,
            member.last_exit,
            "no restart is left" if gives_up else f"restart in {decision.delay_s:.1f} s",
        )
        if role is not Role.COSCHEDULER:
            died = WorkerDied(
                role.label, child.plan.index, child.incarnation, member.last_exit, decision.is_spent
            )
            self._link.send(died)
        if gives_up:
            self._give_up(member)
            return
        if role is Role.GPU:
            self._replace_ring(member.num_spawns + 1)
        member.due_s = self._clock() + decision.delay_s

    def _replace_ring(self, epoch: int) -> None:
        """The logit ring belongs to the dead gpu process: replaced with it, never repaired."""
        fds = self._segments.replace_ring(epoch)
        names = sorted(fds)
        self._fleet.order_pool(
            Role.SAMPLER, ReplaceRing(epoch, names), [fds[name] for name in names]
        )

    def _give_up(self, member: Member) -> None:
        policy = self._budgets[member.plan.role].policy
        self._failure = self._failure or RestartBudgetSpent(
            f"{member.plan.name} died too often; it last {member.last_exit}",
            value=f"{policy.max_restarts + 1} deaths",
            limit=f"{policy.max_restarts} restarts in {policy.window_s:.0f} s",
            remedy="Its own messages above say why; run `hybridgen doctor`",
        )
        if member.plan.role is Role.COSCHEDULER:
            self._stop()  # nobody is left who could answer clients
        else:
            self._drain(HOPELESS_DRAIN_S)

    # --- ways to the end ------------------------------------------------------------------------

    def _on_signal(self, signum: signal.Signals) -> None:
        self._num_stop_signals += 1
        if self._phase is Phase.STARTING:
            self._exit_code = EXIT_INTERRUPTED if signum is signal.SIGINT else 0
            self._stop()
        elif self._num_stop_signals == 1 and self._phase is Phase.RUNNING:
            logger.info("%s: finishing what runs", signum.name)
            self._drain(self._config.drain_timeout_s)
        elif self._phase is Phase.DRAINING:
            logger.warning("%s again: ending now", signum.name)
            self._drain(0.0)
        else:
            self._fleet.kill()

    def _on_owner_gone(self) -> None:
        if self._owner is not None:
            self._owner.close()
            self._owner = None
            self._poller_version = -1
        if self._phase is Phase.STARTING:
            self._stop()
        else:
            self._drain(0.0)

    def _drain(self, timeout_s: float) -> None:
        """Let the coscheduler finish within the time; a later, shorter limit replaces it."""
        if self._phase not in {Phase.RUNNING, Phase.DRAINING}:
            return
        deadline_s = self._clock() + timeout_s + DRAIN_SLACK_S
        if self._phase is Phase.DRAINING and deadline_s >= (self._deadline_s or 0.0):
            return
        self._phase, self._deadline_s = Phase.DRAINING, deadline_s
        self._link.send(DrainTree(timeout_s))

    def _close_doors(self) -> None:
        """All tokens are made: once the gateways have passed them on, within the limit, stop."""
        if self._phase is not Phase.DRAINING:
            return
        if not self._are_doors_closed:
            self._are_doors_closed = True
            self._fleet.ask_pool_to_exit(Role.GATEWAY)
        if all(member.child is None for member in self._fleet.pool(Role.GATEWAY)):
            self._stop()

    def _stop(self) -> None:
        if self._phase in {Phase.STOPPING, Phase.OVER}:
            return
        self._phase = Phase.STOPPING
        self._deadline_s = self._clock() + EXIT_GRACE_S
        self._fleet.ask_to_exit()

    def _fail(self, error: HybridGenError) -> None:
        self._failure = self._failure or error
        self._stop()

    def _start_timeout(self) -> HybridGenError:
        late = [name for name, member in self._fleet.members.items() if not member.is_ready]
        return StartFailed(
            f"not ready in time: {', '.join(late)}",
            limit=f"{self._config.start_timeout_s} s",
            remedy="Raise --start-timeout-s, or see their own messages above",
        )


def _root_cause(child: Child, member: Member) -> HybridGenError:
    """What the child itself said, else how it ended."""
    if child.failure is not None:
        return child.failure.error.exception()
    return StartFailed(
        f"{member.plan.name} ended before it was ready: {member.last_exit}",
        remedy="Its own messages above say why; run `hybridgen doctor`",
        process=member.plan.name,
    )
