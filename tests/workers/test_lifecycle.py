"""Born from a spec, ready, told to exit, gone with its parent; a failed start says why, once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hybridgen.errors import PeerGone, StartFailed
from hybridgen.ipc.board import ProcessState, Role, start_ticks
from hybridgen.ipc.control import MAX_FRAME_BYTES, ControlSocket, control_pair
from hybridgen.messages import (
    ChildFact,
    Decoder,
    DrainWorker,
    LoadProgress,
    ReplaceRing,
    WorkerFailed,
    WorkerReady,
    encode,
)
from hybridgen.workers import lifecycle
from tests.support.eventually import eventually
from tests.workers.orphanage import bare_order, bare_spec, idle, start_process, start_worker
from tests.workers.workplace import Workplace

ROOT = Path(__file__).parents[2]

_decode_fact = Decoder(ChildFact)


@pytest.fixture(autouse=True)
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def facts_until_gone(control: ControlSocket) -> list[object]:
    """Everything that the worker says before its socket closes."""
    facts = []
    while True:
        try:
            received = control.receive(20.0)
        except PeerGone:
            return facts
        assert received is not None
        facts.append(_decode_fact(received[0]))


# --- in this process ------------------------------------------------------------------------------


def test_claims_its_line_on_the_board(workplace: Workplace) -> None:
    context = workplace.context("sampler-1", incarnation=3)
    line = workplace.snapshot("sampler-1")
    assert context.name == "sampler-1"
    assert (line.pid, line.role, line.index, line.incarnation) == (os.getpid(), Role.SAMPLER, 1, 3)
    assert line.start_ticks == start_ticks(os.getpid()) > 0
    assert line.state is ProcessState.STARTING


def test_says_that_it_is_ready_on_the_board_and_to_the_supervisor(workplace: Workplace) -> None:
    context = workplace.context("gpu-0")
    context.report_progress(0.5, "loading")
    context.ready(note="all is well")
    progress, ready = workplace.facts("gpu-0")
    assert progress == LoadProgress(0.5, "loading")
    assert isinstance(ready, WorkerReady)
    assert ready.cpus == sorted(os.sched_getaffinity(0))
    assert ready.rss_bytes > 1_000_000
    assert ready.note == "all is well"
    assert workplace.snapshot("gpu-0").state is ProcessState.READY


def test_maps_a_segment_once(workplace: Workplace) -> None:
    context = workplace.context("gpu-0")
    assert context.segment("slots") is context.segment("slots")


def test_a_drain_order_asks_it_to_exit(workplace: Workplace) -> None:
    context = workplace.context("tokenizer-0")
    context.read_orders()
    assert not context.should_exit
    workplace.order("tokenizer-0", DrainWorker())
    context.read_orders()
    assert context.should_exit


def test_sigterm_asks_it_to_exit(workplace: Workplace) -> None:
    context = workplace.context("tokenizer-0")
    signal.raise_signal(signal.SIGTERM)
    assert context.should_exit


def test_a_supervisor_that_hung_up_ends_it(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    context = workplace.context("tokenizer-0")
    workplace.controls.pop("tokenizer-0").close()
    with pytest.raises(SystemExit):
        context.read_orders()
    assert codes == [lifecycle.EXIT_ORPHANED]


def test_of_two_rings_that_came_unread_the_last_one_counts(workplace: Workplace) -> None:
    context = workplace.context("sampler-0")
    context.segment("logits")
    context.segment("sampled")
    for _ in range(2):
        workplace.replace_ring(["sampler-0"])
    context.read_orders()
    ring = context.wait_for_ring()
    assert ring is not None
    assert [segment.epoch for segment in ring] == [3, 0]
    assert ring == (context.segment("logits"), context.segment("sampled"))


def test_a_ring_that_was_announced_twice_or_too_late_is_the_next_ring_once(
    workplace: Workplace,
) -> None:
    context = workplace.context("sampler-0")
    context.segment("logits")
    context.segment("sampled")
    workplace.replace_ring(["sampler-0"])
    ring = context.wait_for_ring()
    assert ring is not None
    num_fds = len(os.listdir("/proc/self/fd"))
    for epoch in (2, 1):  # the same again, and one that was overtaken
        fds = [segment.fd for segment in ring]
        workplace.order("sampler-0", ReplaceRing(epoch, ["logits", "sampled"]), fds)
    workplace.order("sampler-0", DrainWorker())
    context.read_orders()
    assert len(os.listdir("/proc/self/fd")) == num_fds
    assert context.wait_for_ring() is None


def test_garbage_of_the_supervisor_is_dropped_and_counted(workplace: Workplace) -> None:
    context = workplace.context("tokenizer-0")
    control = workplace.controls["tokenizer-0"]
    control.send(b"\xc1")
    control.send(encode(LoadProgress(0.5, "not an order")))
    with socket.socket(fileno=os.dup(control.fileno())) as raw:
        raw.sendall(bytes(MAX_FRAME_BYTES + 1))
    control.send(encode(DrainWorker()))
    context.read_orders()
    assert context.num_corrupt == 3
    assert context.should_exit


def test_waiting_for_a_ring_ends_with_a_drain_order(workplace: Workplace) -> None:
    context = workplace.context("sampler-0")
    workplace.order("sampler-0", DrainWorker())
    assert context.wait_for_ring() is None


def test_waits_only_so_long_for_a_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "SPEC_TIMEOUT_S", 0.0)
    ours, theirs = control_pair()
    with ours, theirs, pytest.raises(StartFailed, match="no description"):
        lifecycle._receive_spec(theirs)


def test_a_failure_that_is_too_long_to_tell_still_has_its_exit_code() -> None:
    ours, theirs = control_pair()
    with ours, theirs:
        error = StartFailed("x" * 300_000)
        assert lifecycle._report_failure(theirs, error) == error.exit_code


# --- as processes ---------------------------------------------------------------------------------


def test_another_order_in_place_of_the_spec_is_a_failed_start() -> None:
    process, control = start_process()
    with control:
        control.send(encode(DrainWorker()))
        (failed,) = facts_until_gone(control)
    assert isinstance(failed, WorkerFailed)
    assert failed.error.code == "start_failed"
    assert process.wait(5.0) == failed.error.exception().exit_code


def test_a_supervisor_that_is_gone_before_the_spec_is_no_error() -> None:
    process, control = start_process()
    control.close()
    assert process.wait(5.0) == lifecycle.EXIT_ORPHANED


@pytest.mark.parametrize(
    ("entry", "code", "exit_code", "message"),
    [
        ("tests.workers.orphanage:refuse", "bad_model_file", 65, "the file is cut off"),
        ("tests.workers.orphanage:break_down", "internal_error", 70, "ZeroDivisionError: by zero"),
        ("tests.workers.orphanage:missing", "internal_error", 70, "AttributeError"),
    ],
)
def test_a_failed_start_says_its_cause_once_and_exits(
    entry: str, code: str, exit_code: int, message: str
) -> None:
    process, control = start_worker(entry)
    with control:
        (failed,) = facts_until_gone(control)
    assert process.wait(5.0) == exit_code
    assert isinstance(failed, WorkerFailed)
    assert failed.error.code == code
    assert message in failed.error.message
    assert "Traceback" in failed.traceback


def test_one_that_waits_for_a_spec_is_tied_to_its_parent_before_it_loads_anything() -> None:
    process, control = start_process()
    with control:
        control.send(encode(bare_order("tests.workers.orphanage:missing", supervisor_pid=1)))
        assert facts_until_gone(control) == []
    assert process.wait(20.0) == lifecycle.EXIT_ORPHANED


def test_one_that_waited_runs_what_it_prepared() -> None:
    process, control = start_process()
    with control:
        control.send(encode(bare_order("tests.workers.orphanage:prepare")))
        eventually(lambda: psutil.Process(process.pid).cmdline()[0] == "waits", 10.0)
        control.send(encode(bare_spec("tests.workers.orphanage:missing")))
        assert facts_until_gone(control) == [LoadProgress(1, "mock")]
    assert process.wait(5.0) == 0


def test_one_that_waits_has_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bare_spec("tests.workers.orphanage:missing")
    waits = (encode(bare_order("tests.workers.orphanage:prepare")), [])
    frames = iter([waits, None, None, (encode(spec), [])])
    control: Any = SimpleNamespace(receive=lambda _timeout_s: next(frames))
    monkeypatch.setattr(lifecycle, "_stand_by", lambda _order: idle)
    assert lifecycle._receive_spec(control) == (spec, idle)


def test_one_that_cannot_prepare_says_why() -> None:
    process, control = start_process()
    with control:
        control.send(encode(bare_order("tests.workers.orphanage:refuse_ahead")))
        (failed,) = facts_until_gone(control)
    assert isinstance(failed, WorkerFailed)
    assert "the file is cut off" in failed.error.message
    assert process.wait(5.0) == 65


def test_an_orphan_is_gone_within_a_second() -> None:
    command = [sys.executable, "-m", "tests.workers.orphanage"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        worker = psutil.Process(int(supervisor.stdout.readline()))
        assert worker.is_running()
        supervisor.kill()
        eventually(lambda: is_gone(worker), 1.0)


def is_gone(process: psutil.Process) -> bool:
    """Ended; an orphan may stay a zombie where nobody reaps it."""
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("role", ["sampler", "tokenizer", "detokenizer", "coscheduler"])
def test_a_cpu_worker_that_ran_has_loaded_no_torch(role: str) -> None:
    loaded = modules_loaded_by(role)
    assert "torch" not in loaded
    assert "transformers" not in loaded
    if role == "sampler":
        assert "numpy" not in loaded


def modules_loaded_by(role: str) -> set[str]:
    """Heavy modules in a process that has run the worker, from its start to its drain order."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.workers.lean_run", role],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return set(result.stdout.split())
