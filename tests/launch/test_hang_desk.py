"""What is found about a process is written and acted upon for that process, never its successor."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridgen.config import ServerSection
from hybridgen.ipc import stack_dump
from hybridgen.ipc.board import Board, ProcessState, Role
from hybridgen.launch.fleet import Member
from hybridgen.launch.hang_desk import HangDesk
from hybridgen.launch.hang_watch import HangLimits
from hybridgen.launch.incident import IncidentFolder
from tests.support.fake_clock import FakeClock

#: Marked after 9 s, asked for its stacks after 15, aborted after 20, killed after 21.
LIMITS = HangLimits.of(ServerSection(hang_timeout_s=20.0))
#: Above what the kernel gives: nobody has these numbers.
FIRST_PID = 1 << 23


class StandInChild:
    """A process that never moves."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.state = ProcessState.READY
        self.has_waited = False
        self.end_reason = ""
        self.signals: list[signal.Signals] = []

    def signal(self, signum: signal.Signals) -> None:
        self.signals.append(signum)


class Stage:
    """One sampler and the desk that watches it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.board = Board.in_memory(1)
        plan: Any = SimpleNamespace(name="sampler-0", role=Role.SAMPLER, board_index=0)
        self.member = Member(plan)
        self.asked: list[int] = []
        self.folder = folder
        fleet: Any = SimpleNamespace(members={"sampler-0": self.member})
        self.desk = HangDesk(
            LIMITS,
            fleet=fleet,
            board=self.board,
            incidents=IncidentFolder(folder),
            instance="cafe",
            clock=self.clock,
        )
        monkeypatch.setattr(stack_dump, "ask", self.asked.append)
        self.start()
        self.wait(1)

    def start(self) -> StandInChild:
        """The next incarnation; nothing is said of the one before."""
        self.member.num_spawns += 1
        self.board.line(0).begin(0, 0, Role.SAMPLER, 0, self.member.num_spawns)
        self.board.judge(0, stands_still=False)
        self.member.stands_still = False
        child = StandInChild(FIRST_PID + self.member.num_spawns)
        self.member.child = child  # type: ignore[assignment]  # as far as the desk looks at it
        return child

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.desk.look()

    @property
    def reports(self) -> list[str]:
        return [path.read_text() for path in self.folder.glob("*")]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_a_process_that_stands_still_is_reported_and_ended(stage: Stage) -> None:
    child: Any = stage.member.child
    stage.wait(22)
    assert stage.asked == [child.pid]
    (report,) = stage.reports
    assert f"pid {child.pid}, incarnation 1" in report
    assert child.signals == [signal.SIGABRT, signal.SIGKILL]


@pytest.mark.parametrize(
    ("has_waited", "signals"), [(False, []), (True, [signal.SIGABRT, signal.SIGKILL])]
)
def test_only_one_that_had_not_waited_has_the_time_of_a_start(
    stage: Stage, has_waited: bool, signals: list[signal.Signals]
) -> None:
    child: Any = stage.start()
    child.state, child.has_waited = ProcessState.STARTING, has_waited
    stage.wait(23)
    assert child.signals == signals


def test_a_replacement_gets_no_report_of_its_predecessor(stage: Stage) -> None:
    stage.wait(15)
    assert stage.asked
    successor = stage.start()
    stage.wait(8)
    assert stage.reports == []
    assert stage.asked == [FIRST_PID + 1]
    assert successor.signals == []


@pytest.mark.parametrize("second", [10, 15, 19, 20])
def test_a_replacement_begins_at_the_foot_of_the_ladder(stage: Stage, second: int) -> None:
    stage.wait(second)
    successor = stage.start()
    stage.wait(8)
    assert successor.signals == []
    assert successor.end_reason == ""
    assert not stage.member.stands_still
    assert not stage.board.stands_still(0)


def test_nothing_is_written_of_a_process_that_has_ended_meanwhile(stage: Stage) -> None:
    stage.wait(15)
    stage.member.child = None
    stage.wait(10)
    assert stage.reports == []
