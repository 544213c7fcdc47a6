from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hybridgen.errors import StartFailed
from hybridgen.ipc.board import Role
from hybridgen.ipc.control import MAX_FRAME_BYTES, ControlSocket, control_pair
from hybridgen.launch.child import (
    MAX_FRAMES_AT_ONCE,
    Child,
    child_environment,
    describe_exit,
    discard,
)
from hybridgen.launch.plan import WorkerPlan
from hybridgen.messages import (
    DrainWorker,
    ErrorInfo,
    LoadProgress,
    WorkerFailed,
    WorkerReady,
    encode,
)

READY = WorkerReady(rss_bytes=1, cpus=[0])
GARBAGE = [b"\xc1", b"\xff" * 1000, encode(DrainWorker()), b"\x91" * 5000]


@pytest.fixture
def pair() -> Iterator[tuple[Child, ControlSocket]]:
    """A child, and its own end of the control socket."""
    ours, theirs = control_pair()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child = Child(WorkerPlan(Role.GPU, 0, 1, "nothing:run"), 1, process, ours)
    with theirs:
        yield child, theirs
    if process.stdin is not None:
        process.stdin.close()
    discard(process, ours)
    os.close(child.fileno())


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0 without being asked"),
        (3, "exited with code 3"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-50, "killed by signal 50"),
    ],
)
def test_exits_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_only_the_gpu_process_sees_a_device_and_its_threads() -> None:
    inherited = [("CUDA_VISIBLE_DEVICES", "3"), ("OMP_NUM_THREADS", "8"), ("LANG", "C")]
    assert child_environment(inherited, has_device=True) == dict(inherited)
    role = child_environment(inherited, has_device=False)
    assert (role["CUDA_VISIBLE_DEVICES"], role["OMP_NUM_THREADS"], role["LANG"]) == ("", "1", "C")


def test_garbage_of_a_child_is_dropped_and_counted_and_nobody_dies_of_it(
    pair: tuple[Child, ControlSocket],
) -> None:
    child, theirs = pair
    for frame in GARBAGE:
        theirs.send(frame)
    with socket.socket(fileno=os.dup(theirs.fileno())) as raw:
        raw.sendall(bytes(MAX_FRAME_BYTES + 1))
    theirs.send(encode(READY))
    assert child.take_facts() == [READY]
    assert child.num_corrupt == len(GARBAGE) + 1
    assert child.failure is None


def test_what_a_child_says_twice_counts_once_and_descriptors_of_it_are_closed(
    pair: tuple[Child, ControlSocket],
) -> None:
    child, theirs = pair
    for fact in (LoadProgress(0.5, "loading"), READY, READY):
        theirs.send(encode(fact), [theirs.fileno()])
    num_fds = len(os.listdir("/proc/self/fd"))
    assert child.take_facts() == [LoadProgress(0.5, "loading"), READY]
    assert child.take_facts() == []
    assert len(os.listdir("/proc/self/fd")) == num_fds


def test_the_last_words_of_a_child_are_heard_whatever_it_said_before(
    pair: tuple[Child, ControlSocket],
) -> None:
    child, theirs = pair
    progress = LoadProgress(0.5, "loading")
    for _ in range(MAX_FRAMES_AT_ONCE):
        theirs.send(encode(progress))
    failed = WorkerFailed(ErrorInfo.of(StartFailed("no memory")))
    theirs.send(encode(failed))
    theirs.close()
    assert child.take_facts(has_ended=True) == [*[progress] * MAX_FRAMES_AT_ONCE, failed]
    assert child.failure == failed


def test_a_child_that_talks_without_end_keeps_nobody_waiting(
    pair: tuple[Child, ControlSocket],
) -> None:
    child, theirs = pair
    for _ in range(MAX_FRAMES_AT_ONCE + 1):
        theirs.send(b"\xc1")
    assert child.take_facts() == []
    assert child.num_corrupt == MAX_FRAMES_AT_ONCE
