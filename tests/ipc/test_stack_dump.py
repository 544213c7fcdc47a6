"""Python stacks of another process, taken by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hybridgen.ipc import stack_dump
from tests.support.eventually import eventually

_CODE = """
import sys, time
from hybridgen.ipc import stack_dump
def stuck_here():
    print("up", flush=True)
    sum(range(10**15))  # one call into C: no line of Python runs for hours
if sys.argv[1] == "registered":
    stack_dump.register()
stuck_here()
"""


def _started(how: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", _CODE, how], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        process.kill()


@pytest.fixture
def stuck() -> Iterator[int]:
    yield from _started("registered")


@pytest.fixture
def unaware() -> Iterator[int]:
    yield from _started("unaware")


def test_a_process_stuck_in_native_code_still_shows_its_stack(stuck: int) -> None:
    for _ in range(2):  # read while it writes; what the first answer left is gone in the second
        assert stack_dump.ask(stuck)
        eventually(lambda: "stuck_here" in stack_dump.read(stuck), 30.0)
        assert stack_dump.read(stuck).count("Current thread") == 1


def test_a_stopped_process_leaves_nothing(stuck: int) -> None:
    os.kill(stuck, signal.SIGSTOP)
    assert stack_dump.ask(stuck)
    assert stack_dump.read(stuck) == ""


def test_who_would_be_ended_by_the_signal_is_not_asked(unaware: int) -> None:
    assert not stack_dump.ask(unaware)
    assert stack_dump.read(unaware) == ""
    os.kill(unaware, 0)


def test_a_process_that_is_gone_is_not_there_to_dump() -> None:
    assert not stack_dump.ask(2**22 - 1)
