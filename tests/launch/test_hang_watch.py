"""When a process counts as hanging, and what follows when."""

from __future__ import annotations

import itertools

import pytest

from hybridgen.config import ServerSection
from hybridgen.ipc.board import Role
from hybridgen.ipc.pulse import Pulse
from hybridgen.launch.hang_watch import Finding, HangLimits, HangWatch, Rung, Subject
from tests.support.fake_clock import FakeClock

LIMITS = HangLimits.of(
    ServerSection(hang_timeout_s=20.0, gpu_hang_timeout_s=30.0, start_timeout_s=100.0)
)


class Stage:
    """One process under a watch that looks once a second."""

    def __init__(self, role: Role = Role.SAMPLER, limits: HangLimits = LIMITS) -> None:
        self.clock = FakeClock()
        self.watch = HangWatch(limits, self.clock)
        self.role = role
        self.incarnation = 1
        self.is_starting = False
        self.beats = itertools.count(1)
        self.pulse = Pulse(0, 0, 0)
        self.look()

    def look(self) -> list[Finding]:
        subject = Subject("x-0", self.role, self.incarnation, self.is_starting, self.pulse)
        return self.watch.look([subject])

    def stand_still(self, seconds: int) -> list[tuple[int, Rung]]:
        """(second, rung) of everything found meanwhile."""
        found = []
        for second in range(1, seconds + 1):
            self.clock.advance(1.0)
            found += [(second, finding.rung) for finding in self.look()]
        return found

    def beat(self) -> None:
        self.pulse = self.pulse._replace(beats=next(self.beats))


def test_each_rung_comes_once_after_its_own_time() -> None:
    assert Stage(Role.SAMPLER).stand_still(40) == [
        (9, Rung.MARK),
        (15, Rung.DUMP),
        (20, Rung.ABORT),
        (21, Rung.KILL),
    ]


def test_the_gpu_process_has_a_limit_of_its_own() -> None:
    assert Stage(Role.GPU).stand_still(40) == [
        (9, Rung.MARK),
        (23, Rung.DUMP),
        (30, Rung.ABORT),
        (31, Rung.KILL),
    ]


def test_a_process_that_stood_for_less_than_its_limit_is_only_marked_and_heals() -> None:
    stage = Stage()
    assert stage.stand_still(14) == [(9, Rung.MARK)]
    stage.beat()
    stage.clock.advance(1.0)
    assert stage.look() == [Finding("x-0", 1, Rung.HEAL, 14.0)]
    assert stage.stand_still(9) == [(9, Rung.MARK)]


@pytest.mark.parametrize("word", ["progress", "beats"])
def test_any_turn_of_the_loop_is_a_sign_of_life(word: str) -> None:
    stage = Stage()
    for number in range(1, 60):
        assert stage.stand_still(1) == []
        stage.pulse = stage.pulse._replace(**{word: number})


def test_a_process_may_be_busy_until_the_time_it_named() -> None:
    stage = Stage()
    stage.pulse = stage.pulse._replace(busy_until_ns=int((stage.clock.now_s + 50) * 1e9))
    assert stage.stand_still(49) == []
    assert stage.stand_still(10)[0] == (9, Rung.MARK)


def test_a_damaged_time_until_which_it_is_busy_protects_nobody() -> None:
    stage = Stage()
    stage.pulse = stage.pulse._replace(busy_until_ns=2**63)
    assert stage.stand_still(10) == [(9, Rung.MARK)]


def test_a_replacement_begins_anew() -> None:
    stage = Stage()
    stage.stand_still(19)
    stage.incarnation = 2
    assert stage.stand_still(8) == []


def test_a_replacement_that_never_starts_is_ended_after_the_time_of_a_start() -> None:
    stage = Stage()
    stage.is_starting = True
    found = stage.stand_still(110)
    assert [rung for _, rung in found] == [Rung.MARK, Rung.DUMP, Rung.ABORT, Rung.KILL]
    assert found[0][0] >= 100
    assert found[2][0] >= found[1][0] + 2  # the report comes one look after the dump


def test_what_passes_while_nobody_looks_does_not_count() -> None:
    stage = Stage()
    stage.clock.advance(3600.0)  # a suspended machine: all processes stood, the watch too
    assert stage.look() == []


def test_a_process_that_is_gone_is_forgotten() -> None:
    stage = Stage()
    stage.stand_still(19)
    stage.watch.look([])
    assert stage.stand_still(8) == []


def test_short_limits_are_looked_at_more_often() -> None:
    short = HangLimits.of(ServerSection(hang_timeout_s=4.0))
    assert LIMITS.look_s == 1.0
    assert short.look_s == 0.5
