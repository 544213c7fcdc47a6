"""The supervisor: one poll loop over pidfds, control sockets, signals and the admin socket.

::

    STARTING ── every child ready ──► RUNNING ── stop asked ──► DRAINING ── drained ──► STOPPING
        │ a child failed                 │ budget spent            (or time is up)          │
        └────────────────────────────────┴──────────────────────────────────────────────────┤
                                                                     last child reaped ──► OVER

Drained means that the last token is with the gateways, which then pass it on and leave first.
A death is seen through the pidfd within the poll's wake-up. While RUNNING or DRAINING it is
answered by a replacement inside the group's budget; while STARTING by giving up, with the child's
own root cause. The loop sleeps until something happens or the next due time; its only tick is the
look at the board, once a second, for processes that stand still.
"""

from __future__ import annotations

import enum
import logging
import signal
import socket

from hybridgen.clock import Clock, monotonic_s
from hybridgen.errors import HybridGenError, RestartBudgetSpent
from hybridgen.ipc.board import Role
from hybridgen.ipc.channel import Poller
from hybridgen.launch.admin import AdminDesk
from hybridgen.launch.child import Child
from hybridgen.launch.coscheduler_link import CoschedulerLink
from hybridgen.launch.fleet import Fleet, Member
from hybridgen.launch.hang_desk import HangDesk
from hybridgen.launch.loaded_share import loaded_share
from hybridgen.launch.plan import TreePlan
from hybridgen.launch.restart import RestartBudget, SpentAction, restart_policies
from hybridgen.launch.segments import TreeSegments
from hybridgen.launch.service_link import ServiceLink, loading_status, serving_status
from hybridgen.launch.signals import SignalQueue, exit_code_of
from hybridgen.launch.start_failure import start_failed, start_timed_out
from hybridgen.launch.tree_listener import TreeListener
from hybridgen.messages import (
    DrainTree,
    LoadProgress,
    SlotEvent,
    WorkerDied,
    WorkerReady,
)

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


#: Before and after, time limits of their own end whoever hangs.
_WATCHED = frozenset({Phase.RUNNING, Phase.DRAINING})


class Supervisor:
    """Runs one tree until it is over.

    Args:
        plan: what to run.
        fleet: its children, none started yet.
        segments: their shared memory.
        admin: answers `ps` and `stop`.
        link: to the coscheduler.
        hangs: looks for processes that stand still.
        listener: hears about the start.
        manager: the service manager, told how the tree is.
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
        hangs: HangDesk,
        listener: TreeListener,
        manager: ServiceLink,
        owner: socket.socket | None = None,
        clock: Clock = monotonic_s,
    ) -> None:
        self._config = plan.config.server
        self._fleet = fleet
        self._segments = segments
        self._admin = admin
        self._link = link
        self._hangs = hangs
        self._listener = listener
        self._manager = manager
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

    def run(self, signals: SignalQueue) -> int:
        """Start the tree, keep it, end it. Call from the main thread.

        Args:
            signals: that ask it to end.

        Returns:
            0 after an orderly stop, 130 when interrupted during the start.

        Raises:
            HybridGenError: why the tree could not start, or gave up.
        """
        try:
            self._fleet.start_all()
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
        for role, standby in self._fleet.standbys.items():
            if standby.child in ready:
                self._fleet.bury_standby(role)
        for stop in self._admin.serve(self._is_serving):
            self._drain(self._config.drain_timeout_s if stop.timeout_s is None else stop.timeout_s)
        if self._link.is_drained() and self._phase is Phase.DRAINING:
            self._close_doors()
        if self._owner is not None and self._owner in ready:
            self._on_owner_gone()
        self._on_time()
        if self._manager.is_there:
            is_stopping = self._phase not in {Phase.STARTING, Phase.RUNNING}
            self._manager.tell(
                is_ready=self._is_serving, is_stopping=is_stopping, status=self._status()
            )

    @property
    def _is_serving(self) -> bool:
        return self._phase is Phase.RUNNING and self._fleet.can_serve

    def _status(self) -> str:
        members = self._fleet.members.values()
        if self._phase is Phase.STARTING:
            return loading_status(loaded_share(members), members)
        if self._phase is Phase.RUNNING:
            return serving_status(members)
        return "finishing what runs" if self._phase is Phase.DRAINING else "ending"

    def _watch(self, signals: SignalQueue) -> None:
        """Poll what there is now; built anew only when the set of children has changed."""
        if self._poller_version == self._fleet.version:
            return
        self._poller = Poller()
        for child in self._fleet.children:
            self._poller.add(child)
            if child.is_control_open:
                self._poller.add(child.control)
        for standby in self._fleet.standbys.values():
            if standby.child is not None:
                self._poller.add(standby.child)
        self._poller.add(signals)
        self._poller.add(self._admin.socket)
        self._poller.add(self._link.socket)
        if self._owner is not None:
            self._poller.add(self._owner)
        self._poller_version = self._fleet.version

    def _sleep_s(self) -> float:
        dues = [self._fleet.next_due_s(), self._manager.next_due_s]
        dues += [self._hangs.next_due_s] if self._phase in _WATCHED else []
        times = [self._deadline_s, self._link.retry_at_s, *dues]
        wake_s = min((time_s for time_s in times if time_s is not None), default=None)
        return MAX_SLEEP_S if wake_s is None else min(MAX_SLEEP_S, max(0.0, wake_s - self._clock()))

    def _on_time(self) -> None:
        self._fleet.start_due()
        self._link.flush()
        if self._phase in _WATCHED:
            self._hangs.look()
        if self._phase is Phase.STOPPING and not self._fleet.children:
            self._phase = Phase.OVER
        if self._deadline_s is None or self._clock() < self._deadline_s:
            return
        if self._phase is Phase.STARTING:
            self._fail(start_timed_out(self._fleet.members.values(), self._config.start_timeout_s))
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
        for fact in child.take_facts(has_ended=has_ended):
            if isinstance(fact, LoadProgress) and self._phase is Phase.STARTING:
                self._listener.child_progress(name, fact)
            elif isinstance(fact, WorkerReady):
                self._on_ready(child)
        if self._phase is Phase.STARTING:
            self._show_load(loaded_share(self._fleet.members.values()))
        if has_ended:
            self._on_end(child)
        elif was_open and not child.is_control_open:
            self._poller_version = -1  # a closed socket is readable for ever

    def _on_ready(self, child: Child) -> None:
        if child.plan.role is Role.COSCHEDULER:
            self._link.expect(child.incarnation)
        if self._phase is Phase.STARTING:
            ready = [member.is_ready for member in self._fleet.members.values()]
            self._listener.child_ready(child.plan.name, sum(ready), len(ready))
            if all(ready):
                self._phase, self._deadline_s = Phase.RUNNING, None
                self._show_load(1.0)
                self._listener.tree_ready()
                self._fleet.keep_standbys()
            return
        if self._phase is Phase.STOPPING:
            return  # it was still starting when the stop came
        logger.info("%s is back (incarnation %d)", child.plan.name, child.incarnation)
        self._fleet.keep_standbys()
        if self._phase is Phase.DRAINING and child.plan.role is Role.COSCHEDULER:
            left_s = max(0.0, (self._deadline_s or 0.0) - DRAIN_SLACK_S - self._clock())
            self._link.send(DrainTree(left_s))  # its predecessor took the order with it

    def _show_load(self, share: float) -> None:
        """For gateways, whose clients wait."""
        self._segments.board.line(0).set("loaded_permille", round(share * 1000))

    def _on_end(self, child: Child) -> None:
        member = self._fleet.bury(child)
        if self._phase is Phase.STARTING:
            self._fail(start_failed(child, member))
        elif self._are_doors_closed and child.plan.role is Role.GATEWAY:
            self._close_doors()
        elif self._phase in {Phase.RUNNING, Phase.DRAINING}:
            self._replace(child, member)

    def _replace(self, child: Child, member: Member) -> None:
        role = child.plan.role
        budget = self._budgets[role]
        decision = budget.spend(was_ready=child.ready is not None)
        gives_up = decision.is_spent and budget.policy.when_spent is SpentAction.EXIT
        is_awaited = self._fleet.has_standby(role)
        delay_s = 0.0 if is_awaited and not decision.is_spent else decision.delay_s
        logger.warning(
            "%s (pid %d, incarnation %d) %s; %s",
            child.plan.name,
            child.pid,
            child.incarnation,
            member.last_exit,
            "no restart is left" if gives_up else f"restart in {delay_s:.1f} s",
        )
        if role is not Role.COSCHEDULER:
            died = WorkerDied(
                *(role.label, child.plan.index, child.incarnation, member.last_exit),
                is_final=decision.is_spent,
                served=None if member.served is None else SlotEvent(*member.served),
            )
            self._link.send(died)
        if gives_up:
            self._give_up(member)
            return
        member.due_s, member.is_budget_spent = self._clock() + delay_s, decision.is_spent

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
            self._exit_code = exit_code_of(signum)
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
            self._fleet.stop_listening()
            self._fleet.ask_pool_to_exit(Role.GATEWAY)
        if all(member.child is None for member in self._fleet.pool(Role.GATEWAY)):
            self._stop()

    def _stop(self) -> None:
        if self._phase in {Phase.STOPPING, Phase.OVER}:
            return
        self._phase = Phase.STOPPING
        self._deadline_s = self._clock() + EXIT_GRACE_S
        self._fleet.stop_listening()
        self._fleet.ask_to_exit()

    def _fail(self, error: HybridGenError) -> None:
        self._failure = self._failure or error
        self._stop()
