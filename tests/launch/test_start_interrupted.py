"""A start that is interrupted in any of its phases, or goes wrong, leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.stand_in_processes import StandInTree

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 0}


def assert_nothing_is_left(tree: StandInTree, folder: Path) -> None:
    assert not tree.survivors()
    assert not tree.runtime_dir.exists()
    assert not list(folder.glob("hybridgen-*[0-9a-f]"))  # links to runtime directories
    assert not (folder / "uri").exists()


@pytest.mark.parametrize("signum", EXIT_CODES)
@pytest.mark.parametrize("phase", ["model", "plan", "memory", "processes"])
def test_a_signal_in_a_phase_of_the_start_ends_it(
    tmp_path: Path, phase: str, signum: signal.Signals
) -> None:
    with StandInTree(tmp_path, STAND_IN_SIGNAL=f"{phase}:{signum.name}") as tree:
        eventually(lambda: bool(tree.track()) or tree.process.poll() is not None, 20.0)
        code, errors = tree.wait_exit()
        assert code == EXIT_CODES[signum]
        assert "Traceback" not in errors
        assert "/5] ready" not in errors
        assert errors.splitlines()[-1].startswith("[")  # the phase: nothing to add
        assert_nothing_is_left(tree, tmp_path)


@pytest.mark.parametrize("signum", EXIT_CODES)
def test_a_signal_while_children_load_ends_them(tmp_path: Path, signum: signal.Signals) -> None:
    with StandInTree(tmp_path, STAND_IN_GPU="hang") as tree:
        eventually(lambda: tree.pid_of("gpu-0") and tree.pid_of("sampler-0"), 20.0)
        tree.track()
        tree.process.send_signal(signum)
        code, errors = tree.wait_exit()
        assert code == EXIT_CODES[signum]
        assert "Traceback" not in errors
        assert_nothing_is_left(tree, tmp_path)


def test_the_moment_of_ready_is_no_start_any_more(tmp_path: Path) -> None:
    with StandInTree(tmp_path, STAND_IN_SIGNAL="ready:SIGINT") as tree:
        code, errors = tree.wait_exit()
        assert code == 0
        assert "Traceback" not in errors
        assert tree.notes() == ["drain 30.0"]
        assert_nothing_is_left(tree, tmp_path)


def test_a_second_signal_ends_a_start_with_a_stopped_child_at_once(tmp_path: Path) -> None:
    with StandInTree(tmp_path, STAND_IN_GPU="hang", STAND_IN_GRACE_S="15") as tree:
        eventually(lambda: tree.pid_of("gpu-0") and tree.pid_of("sampler-0"), 20.0)
        tree.track()
        os.kill(tree.pid_of("gpu-0"), signal.SIGSTOP)
        tree.process.send_signal(signal.SIGINT)
        eventually(lambda: not tree.pid_of("sampler-0"))
        started_s = time.monotonic()
        tree.process.send_signal(signal.SIGINT)
        code, _ = tree.wait_exit()
        assert code == 130
        assert time.monotonic() - started_s < 8.0  # the grace is 15 s
        assert_nothing_is_left(tree, tmp_path)


def test_a_worker_that_cannot_be_imported_ends_the_start_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with StandInTree(tmp_path, STAND_IN_BROKEN=str(tmp_path / "broken")) as tree:
        code, errors = tree.wait_exit()
        assert code == 70
        assert "ImportError: a library is missing" in errors
        assert_nothing_is_left(tree, tmp_path)


@pytest.mark.slow
def test_a_crash_loop_at_import_is_stopped_by_its_intensity(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    with StandInTree(tmp_path, STAND_IN_BROKEN=str(broken)) as tree:
        tree.wait_ready()
        broken.touch()
        os.kill(tree.pid_of("tokenizer-0"), signal.SIGKILL)
        eventually(lambda: "died tokenizer-0 6 final" in tree.notes(), 30.0)
        assert sum("died tokenizer-0" in note for note in tree.notes()) == 6  # five spawns
        tree.process.send_signal(signal.SIGTERM)
        code, errors = tree.wait_exit()
    assert code == 0
    assert errors.count("tokenizer-0: ImportError: a library is missing") == 5
