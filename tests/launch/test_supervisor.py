"""The supervisor over stand-in workers: real processes, real segments, no model."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hybridgen.client import Client
from hybridgen.launch.supervisor import MAX_SLEEP_S, Phase, Supervisor
from tests.launch.test_plan import plan_of
from tests.support.eventually import eventually
from tests.support.fake_clock import FakeClock
from tests.support.stand_in_processes import StandInTree
from tests.support.stand_in_worker import EXIT_0

ROLES = ["coscheduler", "gpu", "sampler", "tokenizer", "detokenizer", "gateway"]


@pytest.mark.parametrize("role", ["sampler", "tokenizer", "detokenizer", "gateway"])
def test_a_killed_pool_worker_is_replaced_and_reported(tmp_path: Path, role: str) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        tree.kill_and_wait_for_successor(f"{role}-0")
        eventually(lambda: f"died {role}-0 1" in tree.notes())


def wait_standby(tree: StandInTree, role: str = "sampler", *, other_than: int = 0) -> int:
    """Process id of the one that waits, once its title is set."""
    name = f"standby-{role}"
    eventually(lambda: tree.pid_of(name) not in (0, other_than), 10.0)
    tree._everyone += tree.children()
    return tree.pid_of(name)


@pytest.mark.parametrize("role", ["sampler", "detokenizer"])
def test_it_is_replaced_by_the_process_that_waited(tmp_path: Path, role: str) -> None:
    with StandInTree(tmp_path, f"--num-{role}s", "2") as tree:
        tree.wait_ready()
        standby = wait_standby(tree, role)
        for name in (f"{role}-1", f"{role}-0"):
            tree.kill_and_wait_for_successor(name)
            assert tree.pid_of(name) == standby
            standby = wait_standby(tree, role)
        tree.process.send_signal(signal.SIGTERM)
        code, errors = tree.wait_exit()
        assert code == 0
        assert errors.count("killed by SIGKILL; restart in 0.0 s") == 2
        assert not tree.survivors()


def test_the_sampler_that_waits_gets_the_ring_of_a_new_gpu_process(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        standby = wait_standby(tree)
        tree.kill_and_wait_for_successor("gpu-0")
        standby = wait_standby(tree, other_than=standby)
        tree.kill_and_wait_for_successor("sampler-0")
        assert tree.pid_of("sampler-0") == standby
        tree.kill_and_wait_for_successor("gpu-0")  # the replacement hears of rings, too
        eventually(lambda: tree.notes().count("ring 3 3") == 1)


def test_nobody_holds_the_ring_of_a_gpu_process_that_is_gone(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        standby = wait_standby(tree, "detokenizer")
        tree.kill_and_wait_for_successor("gpu-0")
        eventually(lambda: "ring 2 2" in tree.notes())
        wait_standby(tree, "sampler")
        present = segments_of(tree.process.pid)
        assert all(segments_of(child.pid) <= present for child in tree.children())
        tree.kill_and_wait_for_successor("detokenizer-0")  # so nobody was thrown away
        assert tree.pid_of("detokenizer-0") == standby


def segments_of(pid: int) -> set[int]:
    """Inodes of the shared memory that a process has a descriptor of."""
    folder = Path(f"/proc/{pid}/fd")
    links = [fd for fd in folder.iterdir() if "/dev/shm/" in os.readlink(fd)]
    assert links
    return {fd.stat().st_ino for fd in links}


@pytest.mark.parametrize("role", ["sampler", "detokenizer"])
def test_it_is_replaced_while_nobody_waits(tmp_path: Path, role: str) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        os.kill(wait_standby(tree, role), signal.SIGKILL)
        tree.kill_and_wait_for_successor(f"{role}-0")
        eventually(lambda: f"died {role}-0 1" in tree.notes())


def test_a_tree_works_where_nobody_can_wait(tmp_path: Path) -> None:
    with StandInTree(tmp_path, STAND_IN_STANDBY="fail") as tree:
        tree.wait_ready()

        def are_buried() -> bool:
            pids = [int(note.split()[1]) for note in tree.notes() if note.startswith("standby ")]
            return len(pids) >= 2 and not any(map(psutil.pid_exists, pids))

        eventually(are_buried, 20.0)
        for role in ("sampler", "detokenizer"):
            tree.kill_and_wait_for_successor(f"{role}-0")
        tree.process.send_signal(signal.SIGTERM)
        code, errors = tree.wait_exit()
    assert code == 0
    for role in ("sampler", "detokenizer"):
        assert re.search(rf"the standby {role} \(pid \d+\) exited with code 65: the stand", errors)


def test_a_dead_gpu_process_takes_its_ring_with_it(tmp_path: Path) -> None:
    with StandInTree(tmp_path, "--num-samplers", "2") as tree:
        tree.wait_ready()
        tree.kill_and_wait_for_successor("gpu-0")
        eventually(lambda: tree.notes().count("ring 2 2") == 2)
        tree.kill_and_wait_for_successor("gpu-0")
        eventually(lambda: tree.notes().count("ring 3 3") == 2)
        assert [note for note in tree.notes() if "died" in note] == ["died gpu-0 1", "died gpu-0 2"]


def test_a_new_coscheduler_takes_the_drain_order(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        tree.kill_and_wait_for_successor("coscheduler-0")
        tree.process.send_signal(signal.SIGTERM)
        code, errors = tree.wait_exit()
        assert code == 0
        assert "Traceback" not in errors
        assert tree.notes()
        assert all(note.startswith("drain ") for note in tree.notes())


@pytest.mark.parametrize(
    ("signum", "how"),
    [
        (signal.SIGSEGV, "killed by SIGSEGV"),
        (signal.SIGABRT, "killed by SIGABRT"),
        (signal.SIGBUS, "killed by SIGBUS"),
        (EXIT_0, "exited with code 0 without being asked"),
    ],
)
def test_how_a_worker_of_each_role_died_is_reported(
    tmp_path: Path, signum: signal.Signals, how: str
) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        for role in ROLES:
            tree.kill_and_wait_for_successor(f"{role}-0", signum)
        with Client(tree.uri) as client:
            processes = {process.name: process for process in client.ps().processes}
        for role in ROLES:
            process = processes[f"{role}-0"]
            assert (process.last_exit, process.restarts) == (how, 1), role


def test_a_worker_that_exits_0_unasked_has_crashed(tmp_path: Path) -> None:
    with StandInTree(tmp_path, STAND_IN_TOKENIZER="exit0") as tree:
        code, errors = tree.wait_exit()
    assert code == 70
    assert "tokenizer-0 ended before it was ready: exited with code 0" in errors


@pytest.mark.parametrize("role", ROLES)
def test_a_start_failure_shows_the_workers_own_cause_once(tmp_path: Path, role: str) -> None:
    with StandInTree(tmp_path, **{f"STAND_IN_{role.upper()}": "fail"}) as tree:
        code, errors = tree.wait_exit()
        assert code == 65
        assert errors.count("error: the stand-in cannot read this") == 1
        assert errors.rstrip().splitlines()[-1].startswith("  field: magic")
        assert "Traceback" not in errors
        assert not tree.survivors()


def test_a_worker_that_never_gets_ready_ends_the_start(tmp_path: Path) -> None:
    with StandInTree(tmp_path, "--start-timeout-s", "4", STAND_IN_SAMPLER="hang") as tree:
        code, errors = tree.wait_exit()
    assert code == 70
    assert "not ready in time: sampler-0" in errors


def test_a_gpu_process_that_keeps_dying_ends_the_tree_with_70(tmp_path: Path) -> None:
    with StandInTree(tmp_path, "--gpu-restart-limit", "1", STAND_IN_GPU="segv@2") as tree:
        tree.wait_ready()
        os.kill(tree.pid_of("gpu-0"), signal.SIGKILL)
        code, errors = tree.wait_exit()
        assert code == 70
        assert "gpu-0 died too often" in errors
        assert "died gpu-0 2 final" in tree.notes()
        assert not tree.survivors()


def test_a_pool_that_keeps_dying_degrades_and_the_tree_stays(tmp_path: Path) -> None:
    with StandInTree(tmp_path, "--pool-restart-limit", "2", STAND_IN_TOKENIZER="segv@2") as tree:
        tree.wait_ready()
        os.kill(tree.pid_of("tokenizer-0"), signal.SIGKILL)
        eventually(lambda: "died tokenizer-0 3 final" in tree.notes(), 10.0)
        with Client(tree.uri) as client:
            listing = client.ps()
        assert not listing.is_ready
        state = {process.name: process.state for process in listing.processes}
        assert state["tokenizer-0"] == "degraded"
        assert state["gpu-0"] == "ready"


def test_a_pool_with_fewer_processes_still_serves(tmp_path: Path) -> None:
    with StandInTree(tmp_path, "--pool-restart-limit", "0", "--num-tokenizers", "2") as tree:
        tree.wait_ready()
        for index, is_ready in ((0, True), (1, False)):
            os.kill(tree.pid_of(f"tokenizer-{index}"), signal.SIGKILL)
            eventually(lambda name=f"died tokenizer-{index} 1 final": name in tree.notes(), 10.0)
            with Client(tree.uri) as client:
                assert client.ps().is_ready is is_ready


def test_a_process_that_stands_still_is_shown_then_replaced_and_reported(tmp_path: Path) -> None:
    incidents = tmp_path / "incidents"
    limits = ("--hang-timeout-s", "4", "--incident-dir", str(incidents))
    with StandInTree(tmp_path, *limits) as tree, tree.wait_ready(), Client(tree.uri) as client:
        old = tree.pid_of("tokenizer-0")
        os.kill(old, signal.SIGSTOP)

        def state() -> tuple[str, bool]:
            listing = client.ps()
            found = next(p for p in listing.processes if p.name == "tokenizer-0")
            return found.state, listing.is_ready

        eventually(lambda: state() == ("unhealthy", False), 5.0)
        eventually(lambda: tree.pid_of("tokenizer-0") not in (0, old), 10.0)
        eventually(lambda: state() == ("ready", True), 10.0)
        assert "died tokenizer-0 1" in tree.notes()
        (report,) = incidents.iterdir()
        assert "state T" in report.read_text()  # a stopped thread; its Python stack cannot be had
        assert "none: the process did not take the signal" in report.read_text()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_drains_and_exits_0(tmp_path: Path, signum: signal.Signals) -> None:
    with StandInTree(tmp_path, "--drain-timeout-s", "7") as tree:
        tree.wait_ready()
        tree.process.send_signal(signum)
        code, errors = tree.wait_exit()
        assert code == 0
        assert "Traceback" not in errors
        assert tree.notes() == ["drain 7.0"]
        assert not tree.survivors()
        assert not tree.runtime_dir.exists()


def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    with StandInTree(tmp_path, STAND_IN_DRAIN="never") as tree:
        tree.wait_ready()
        tree.process.send_signal(signal.SIGTERM)
        eventually(lambda: tree.notes() == ["drain 30.0"])
        started_s = time.monotonic()
        tree.process.send_signal(signal.SIGTERM)
        code, _ = tree.wait_exit()
        assert code == 0
        assert time.monotonic() - started_s < 10.0  # the drain limit is 30 s


def test_a_drain_that_takes_too_long_is_cut(tmp_path: Path) -> None:
    with StandInTree(tmp_path, "--drain-timeout-s", "0.1", STAND_IN_DRAIN="never") as tree:
        tree.wait_ready()
        tree.process.send_signal(signal.SIGTERM)
        code, errors = tree.wait_exit()
        assert code == 0
        assert "drain limit is over" in errors


def test_a_stopped_worker_is_killed_after_the_grace(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        os.kill(tree.pid_of("detokenizer-0"), signal.SIGSTOP)
        tree.process.send_signal(signal.SIGTERM)
        code, _ = tree.wait_exit(10.0)
        assert code == 0
        assert not tree.survivors()


def test_kill_9_of_the_supervisor_leaves_nothing_and_the_next_start_works(tmp_path: Path) -> None:
    segments_before = set(os.listdir("/dev/shm"))
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        for role in ("sampler", "detokenizer"):
            wait_standby(tree, role)
        assert len({child.pid for child in tree.survivors()}) == len(ROLES) + 2
        tree.process.kill()
        eventually(lambda: not tree.survivors(), 5.0)
        assert set(os.listdir("/dev/shm")) <= segments_before
    (tmp_path / "uri").unlink()
    with StandInTree(tmp_path) as second:
        second.wait_ready()


def test_children_born_while_the_supervisor_dies_end_too(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as tree:
        eventually(lambda: len(tree.children()) >= 2)
        tree._everyone = tree.children()
        tree.process.kill()
        # An interpreter that is still starting sees the end of its parent once it runs our code.
        eventually(lambda: not tree.survivors(), 5.0)


def test_a_second_start_in_the_same_directory_names_the_first(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as first:
        first.wait_ready()
        (tmp_path / "b").mkdir()
        with StandInTree(tmp_path / "b", "--runtime-dir", str(first.runtime_dir)) as second:
            code, errors = second.wait_exit()
        assert code == 75
        assert f"pid: {first.process.pid}" in errors


def test_an_idle_supervisor_sleeps_until_its_next_look() -> None:
    clock = FakeClock()
    nothing: Any = SimpleNamespace(next_due_s=None, retry_at_s=None)
    fleet: Any = SimpleNamespace(next_due_s=lambda: None)
    hangs: Any = SimpleNamespace(next_due_s=clock() + 1.0)
    supervisor = Supervisor(
        plan_of(),
        **dict.fromkeys(("segments", "admin", "link", "listener", "manager"), nothing),
        fleet=fleet,
        hangs=hangs,
        clock=clock,
    )
    supervisor._phase, supervisor._deadline_s = Phase.RUNNING, None
    assert supervisor._sleep_s() == 1.0
    clock.advance(0.25)
    assert supervisor._sleep_s() == 0.75
    supervisor._phase = Phase.STOPPING  # nobody is looked at any more
    assert supervisor._sleep_s() == MAX_SLEEP_S


def test_ps_lists_every_process_with_its_state(tmp_path: Path) -> None:
    with StandInTree(tmp_path, "--num-samplers", "2") as tree:
        tree.wait_ready()
        with Client(tree.uri) as client:
            listing = client.ps()
        assert [process.name for process in listing.processes] == [
            *("supervisor-0", "coscheduler-0", "gpu-0", "sampler-0", "sampler-1"),
            *("tokenizer-0", "detokenizer-0", "gateway-0"),
        ]
        assert all(p.state == "ready" and p.rss_bytes > 0 and p.cpus for p in listing.processes)
        assert all(p.progress_age_s is not None for p in listing.processes)
        assert all(0.0 <= (p.progress_age_s or 0.0) < 60.0 for p in listing.processes)
        assert listing.is_ready
        assert listing.shm_bytes > 0


def test_the_admin_socket_is_private(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        assert tree.runtime_dir.stat().st_mode & 0o777 == 0o700
        assert (tree.runtime_dir / "admin.sock").stat().st_mode & 0o777 == 0o600
