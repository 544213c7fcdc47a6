"""Who hangs: a judgement, stepped with an injected clock; acting on it is ``hang_desk``'s.

::

    moves ── stands still ──► MARK ──► DUMP ──► ABORT ──► KILL      each after its own time
      ▲                         │
      └────── moves again ──────┘  HEAL

A death is a fact of the kernel; that a process will never move again is only ever a guess. So
every loop goes round at least once a second, idle or not, and says so on the board (``beat``, or
``tick`` when it did something). Whoever waits in good order for another process beats, too; whoever
waits for its own device does not. A process that knows of something long names the time until
which it is busy.

Time counts only while the watch itself looks: after a suspended machine nobody has hung.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hybridgen.clock import Clock
from hybridgen.config import ServerSection
from hybridgen.ipc.board import Role
from hybridgen.ipc.pulse import Pulse

#: Readiness has to fail within 12 s of a stall, of which the looks of two processes take some.
MAX_MARK_S = 9.0
#: What SIGABRT did not end (a stopped process, one deep in the kernel) is killed so much later.
KILL_GRACE_S = 1.0
#: The board is looked at this often, and more often where limits are short.
MAX_LOOK_S = 1.0
LOOKS_PER_LIMIT = 8
#: Nobody may call itself busy for longer; a word that says so is damaged.
MAX_BUSY_S = 3600.0


class Rung(enum.IntEnum):
    """What is done about a process that stands still, in this order; HEAL takes MARK back."""

    HEAL = 0
    MARK = 1
    DUMP = 2
    ABORT = 3
    KILL = 4


class Ladder(NamedTuple):
    """After how long each rung comes, in seconds."""

    mark_s: float
    dump_s: float
    abort_s: float
    kill_s: float

    @classmethod
    def of(cls, limit_s: float) -> Ladder:
        """That of a process which may stand still for ``limit_s``."""
        mark_s = min(MAX_MARK_S, limit_s / 2)
        return cls(mark_s, max(mark_s, limit_s * 0.75), limit_s, limit_s + KILL_GRACE_S)

    def rung(self, still_s: float) -> int:
        """The highest rung that has come by then."""
        return sum(still_s >= limit_s for limit_s in self)


class HangLimits(NamedTuple):
    """Ladders of all processes."""

    by_role: Mapping[Role, Ladder]
    start: Ladder
    """A process that has not reported ready yet, unless it had waited for its work."""

    @classmethod
    def of(cls, config: ServerSection) -> HangLimits:
        """The configured ones."""
        ladders = dict.fromkeys(Role, Ladder.of(config.hang_timeout_s))
        ladders[Role.GPU] = Ladder.of(config.gpu_hang_timeout_s)
        start_s = config.start_timeout_s
        # The report is written at the look after the dump: of a process that is still there.
        abort_s = start_s + 2 * _look_s(ladders)
        return cls(ladders, Ladder(start_s, start_s, abort_s, abort_s + KILL_GRACE_S))

    @property
    def look_s(self) -> float:
        """Time between two looks."""
        return _look_s(self.by_role)


def _look_s(by_role: Mapping[Role, Ladder]) -> float:
    shortest_s = min(ladder.abort_s for ladder in by_role.values())
    return min(MAX_LOOK_S, shortest_s / LOOKS_PER_LIMIT)


class Subject(NamedTuple):
    """One running process at the moment of a look."""

    name: str
    role: Role
    incarnation: int
    is_starting: bool
    pulse: Pulse


class Finding(NamedTuple):
    """What is to be done about a process now."""

    name: str
    incarnation: int
    rung: Rung
    still_s: float
    """How long it has stood still; with HEAL, how long it had."""


@dataclass(slots=True)
class _Watched:
    incarnation: int
    is_starting: bool
    pulse: Pulse
    still_s: float = 0.0
    rung: int = 0


class HangWatch:
    """Remembers what it saw last of each process.

    Args:
        limits: of all processes.
        clock: seconds of CLOCK_MONOTONIC.
    """

    def __init__(self, limits: HangLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._looked_s = clock()

    @property
    def next_due_s(self) -> float:
        """When to look again, on the clock."""
        return self._looked_s + self._limits.look_s

    def look(self, subjects: Iterable[Subject]) -> list[Finding]:
        """Judge every process that runs; each rung is found once.

        Args:
            subjects: all of them; one that is missing is forgotten.
        """
        now_s = self._clock()
        # A watch that was kept from looking cannot know who moved meanwhile.
        passed_s = min(now_s - self._looked_s, 2 * self._limits.look_s)
        self._looked_s = now_s
        findings: list[Finding] = []
        watched: dict[str, _Watched] = {}
        for subject in subjects:
            before = self._watched.get(subject.name)
            now = self._compare(before, subject, passed_s, now_s)
            watched[subject.name] = now
            findings += self._climb(subject, before, now)
        self._watched = watched
        return findings

    def _compare(
        self, before: _Watched | None, subject: Subject, passed_s: float, now_s: float
    ) -> _Watched:
        now = _Watched(subject.incarnation, subject.is_starting, subject.pulse)
        is_same = before is not None and (before.incarnation, before.is_starting) == (
            subject.incarnation,
            subject.is_starting,
        )
        if before is None or not is_same:
            return now
        busy_s = subject.pulse.busy_until_ns / 1e9
        is_busy = now_s < busy_s <= now_s + MAX_BUSY_S
        if not is_busy and before.pulse[:2] == subject.pulse[:2]:
            now.still_s, now.rung = before.still_s + passed_s, before.rung
        return now

    def _climb(self, subject: Subject, before: _Watched | None, now: _Watched) -> list[Finding]:
        if now.still_s == 0.0:
            was_marked = before is not None and before.rung > 0
            is_same = before is not None and before.incarnation == now.incarnation
            if before is not None and was_marked and is_same:
                return [Finding(subject.name, now.incarnation, Rung.HEAL, before.still_s)]
            return []
        limits = self._limits
        ladder = limits.start if subject.is_starting else limits.by_role[subject.role]
        first, now.rung = now.rung + 1, ladder.rung(now.still_s)
        return [
            Finding(subject.name, now.incarnation, Rung(rung), now.still_s)
            for rung in range(first, now.rung + 1)
        ]
