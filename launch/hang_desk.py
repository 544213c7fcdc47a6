"""Acts on what the hang watch finds: marks, dumps, ends. The supervisor replaces what ended."""

from __future__ import annotations

import logging
import signal
import time

from hybridgen.clock import Clock
from hybridgen.ipc import stack_dump
from hybridgen.ipc.board import Board, ProcessState
from hybridgen.launch.fleet import Fleet, Member
from hybridgen.launch.hang_watch import Finding, HangLimits, HangWatch, Rung, Subject
from hybridgen.launch.incident import IncidentFolder, native_threads

logger = logging.getLogger(__name__)


class HangDesk:
    """Looks at the board from time to time.

    Args:
        limits: of all processes.
        fleet: the children.
        board: where they show that they move, and where the others see who does not.
        incidents: for reports.
        instance: short hex name of the tree.
        clock: seconds of CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        limits: HangLimits,
        *,
        fleet: Fleet,
        board: Board,
        incidents: IncidentFolder,
        instance: str,
        clock: Clock,
    ) -> None:
        self._watch = HangWatch(limits, clock)
        self._fleet = fleet
        self._board = board
        self._incidents = incidents
        self._instance = instance
        self._clock = clock
        self._dumping: dict[str, Finding] = {}  # asked for their stacks at the last look

    @property
    def next_due_s(self) -> float:
        """When to look again, on the clock."""
        return self._watch.next_due_s

    def look(self) -> None:
        """Judge every process, if it is time to."""
        if self._clock() < self.next_due_s:
            return
        dumping, self._dumping = self._dumping, {}
        for finding in dumping.values():
            self._report(self._fleet.members[finding.name], finding)
        for finding in self._watch.look(map(self._subject, self._running())):
            self._act(self._fleet.members[finding.name], finding)

    def _running(self) -> list[Member]:
        """Those that are not on their way out, which has limits of its own."""
        return [
            member
            for member in self._fleet.members.values()
            if member.child is not None and member.child.state is not ProcessState.DRAINING
        ]

    def _subject(self, member: Member) -> Subject:
        pulse = self._board.pulse(member.plan.board_index)
        return Subject(member.name, member.role, member.num_spawns, member.may_be_loading, pulse)

    def _act(self, member: Member, finding: Finding) -> None:
        child, still_s = member.child, finding.still_s
        if child is None:
            return
        if finding.rung is Rung.HEAL:
            logger.warning("%s moves again, after %.1f s", member.name, still_s)
            self._judge(member, stands_still=False)
        elif finding.rung is Rung.MARK:
            logger.warning("%s (pid %d) stands still for %.1f s", member.name, child.pid, still_s)
            self._judge(member, stands_still=True)
        elif finding.rung is Rung.DUMP:
            self._dumping[member.name] = finding
            stack_dump.ask(child.pid)
        else:
            signum = signal.SIGABRT if finding.rung is Rung.ABORT else signal.SIGKILL
            child.end_reason = f"after it had stood still for {still_s:.1f} s"
            logger.error(
                "%s (pid %d) stands still for %.1f s: %s",
                *(member.name, child.pid, still_s, signum.name),
            )
            child.signal(signum)

    def _judge(self, member: Member, *, stands_still: bool) -> None:
        member.stands_still = stands_still
        self._board.judge(member.plan.board_index, stands_still=stands_still)

    def _report(self, member: Member, finding: Finding) -> None:
        """Write down what there is to see; the process had a moment to answer."""
        child = member.child
        if child is None or member.num_spawns != finding.incarnation:
            return  # it has ended meanwhile; its replacement has done nothing
        seen = self._board.snapshot(member.plan.board_index)
        served = self._board.served(member.plan.board_index)
        stacks = stack_dump.read(child.pid)
        lines = [
            f"{member.name} of tree {self._instance} stood still for {finding.still_s:.1f} s",
            f"time {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}",
            f"pid {child.pid}, incarnation {member.num_spawns}, state {seen.state.name.lower()}",
            f"progress {seen.progress}, serving {served}",
            f"counters {seen.counters}",
            "",
            "threads, as the kernel sees them:",
            native_threads(child.pid),
            "",
            "Python stacks:",
            stacks or "none: the process did not take the signal (stopped, or in the kernel)",
            "",
        ]
        path = self._incidents.write(f"{self._instance}-{member.name}", "\n".join(lines))
        if path is not None:
            logger.warning("%s stands still: see %s", member.name, path)
