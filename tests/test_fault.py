from __future__ import annotations

import errno
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen import fault
from hybridgen.errors import ConfigError, InternalError, SharedMemoryFull
from hybridgen.fault import FAULT_ENV, POINTS, SEED_ENV, Fault, Kind, Trap, parse
from hybridgen.ipc.segment import Segment, SegmentKind

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def disarmed():
    yield
    fault.arm({}, "nobody", 1)


def passes(text: str, num_times: int, *, name: str = "gpu-0", incarnation: int = 1) -> list[int]:
    """At which passages, counted from 1, it happens in the process of that name."""
    [one] = parse(text)
    if not one.concerns(name, incarnation):
        return []
    happened: list[int] = []
    current = 0
    trap = Trap(one, random.Random(1), lambda _: happened.append(current))
    for current in range(1, num_times + 1):  # noqa: B007  # the trap's act reads it
        trap.passed()
    return happened


def test_several_faults_are_read() -> None:
    assert parse("ring.commit:kill@1/500, sampler-0/gpu.step:stall=20s@3!,gpu.step:delay=5ms") == [
        Fault("ring.commit", Kind.KILL, one_in=500),
        Fault("gpu.step", Kind.STALL, 20.0, nth=3, role="sampler-0", is_for_each=True),
        Fault("gpu.step", Kind.DELAY, 0.005),
    ]


def test_nothing_is_read_from_nothing() -> None:
    assert parse(" , ") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu.stepp:kill", "gpu.step"),
        ("gpu.step:kil", "kill"),
        ("gpu.step", "point:kind"),
        ("gpu.step:kill=1s", "stall"),
        ("gpu.step:stall=20", "point:kind"),
        ("gpu.step:kill@0", "point:kind"),
        ("gpu.step:kill@2/3", "point:kind"),
        ("gpu.step:kill;ring.commit:kill", "point:kind"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_can(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert told in str(caught.value.fields["limit"])


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ConfigError:
        return


def test_the_nth_passage_is_the_only_one() -> None:
    assert passes("gpu.step:kill@3", 10) == [3]
    assert passes("gpu.step:kill", 10) == [1]


def test_a_replacement_does_not_die_at_the_same_passage() -> None:
    assert passes("gpu.step:kill@3", 10, incarnation=2) == []
    assert passes("gpu.step:kill@3!", 10, incarnation=2) == [3]
    assert passes("gpu.step:kill@1/2", 10, incarnation=2)


def test_a_fault_happens_only_where_it_is_meant_to() -> None:
    assert passes("gpu/gpu.step:kill", 1, name="gpu-0") == [1]
    assert passes("gpu-1/gpu.step:kill", 1, name="gpu-0") == []
    assert passes("sampler/gpu.step:kill", 1, name="gpu-0") == []
    assert passes("supervisor/segment.create:enospc", 1, name="supervisor") == [1]


def test_a_probability_is_about_kept_and_a_seed_repeats_it() -> None:
    first, second = passes("gpu.step:kill@1/10", 5000), passes("gpu.step:kill@1/10", 5000)
    assert first == second
    assert 400 < len(first) < 600


def test_processes_and_seeds_take_different_courses(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[int] = []
    monkeypatch.setattr(fault, "act", lambda _: happened.append(current))
    courses = set()
    for name, seed in (("gpu-0", "1"), ("gpu-0", "2"), ("sampler-0", "1")):
        happened.clear()
        fault.arm({FAULT_ENV: "gpu.step:kill@1/5", SEED_ENV: seed}, name, 1)
        for current in range(100):  # noqa: B007  # the act reads it
            fault.point("gpu.step")
        courses.add(tuple(happened))
    assert len(courses) == 3


def test_nothing_happens_without_the_variable() -> None:
    fault.arm({}, "gpu-0", 1)
    for name in POINTS:
        fault.point(name)


def test_an_armed_process_says_so(caplog: pytest.LogCaptureFixture) -> None:
    fault.arm({FAULT_ENV: "gpu.step:raise"}, "gpu-0", 1)
    assert "on purpose" in caplog.text


def test_an_exception_is_raised_at_the_point() -> None:
    fault.arm({FAULT_ENV: "gpu.step:raise,segment.create:enospc@2"}, "gpu-0", 1)
    with pytest.raises(InternalError, match=r"gpu\.step"):
        fault.point("gpu.step")
    fault.point("segment.create")
    with pytest.raises(OSError, match="on purpose") as caught:
        fault.point("segment.create")
    assert caught.value.errno == errno.ENOSPC


def test_a_segment_that_finds_no_memory_says_what_it_needs() -> None:
    fault.arm({FAULT_ENV: "supervisor/segment.create:enospc"}, "supervisor", 1)
    with pytest.raises(SharedMemoryFull) as caught:
        Segment.create(SegmentKind.RING, 8192, (1, 64), 1)
    assert caught.value.fields["need_bytes"] == 8192


def test_a_delay_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    fault.arm({FAULT_ENV: "gpu.step:delay=7ms,gpu.prefill:stall"}, "gpu-0", 1)
    fault.point("gpu.step")
    fault.point("gpu.prefill")
    assert slept == [0.007, 20.0]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("kill", -signal.SIGKILL),
        ("segv", -signal.SIGSEGV),
        ("bus", -signal.SIGBUS),
        ("abort", -signal.SIGABRT),
        ("exit0", 0),
    ],
)
def test_a_process_dies_as_it_was_asked_to(kind: str, code: int) -> None:
    script = (
        "from hybridgen import fault\n"
        f"fault.arm({{'{FAULT_ENV}': 'gpu.step:{kind}'}}, 'gpu-0', 1)\n"
        "fault.point('gpu.step')\n"
        "raise SystemExit(9)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert result.returncode == code
    assert b"fault at gpu.step" in result.stderr


def test_every_point_of_the_table_is_somewhere_and_no_other() -> None:
    used = set()
    for folder in ("ipc", "workers", "launch", "hybridgen/scheduler", "hybridgen/server"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= set(re.findall(r'fault\.point\("([^"]*)"\)', path.read_text()))
    assert used == set(POINTS)
