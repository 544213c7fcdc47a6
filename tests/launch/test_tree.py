from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hybridgen.client import Client
from hybridgen.config import Config
from hybridgen.errors import BadModelFile, ChannelTimeout, ConfigError, StartFailed
from hybridgen.launch import tree
from hybridgen.launch.config_sources import config_from_options, resolve
from hybridgen.launch.tree import config_flags, start_tree
from tests.support.eventually import eventually
from tests.support.stand_in_processes import ROOT, child_environment

STAND_INS = (sys.executable, "-P", "-m", "tests.support.stand_in_tree")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tree, "SERVE_COMMAND", STAND_INS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("STAND_IN_NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def mock_config(**options: object) -> Config:
    return config_from_options({"model": "mock", **options})


def test_a_tree_is_ready_when_start_returns_and_gone_when_stop_does(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handle = start_tree(mock_config())
    with Client(handle.uri) as client:
        assert client.ps().is_ready
    children = psutil.Process(handle.pid).children()
    assert handle.stop() == 0
    assert not handle.is_running
    assert not any(child.is_running() for child in children)
    assert handle.stop() == 0
    assert capfd.readouterr() == ("", "")


def test_the_callers_environment_adds_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDGEN_NUM_SAMPLERS", "3")
    with start_tree(mock_config()) as handle, Client(handle.uri) as client:
        assert not any(process.name == "sampler-1" for process in client.ps().processes)


def test_a_start_failure_comes_out_as_the_workers_own_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAND_IN_GPU", "fail")
    with pytest.raises(BadModelFile) as caught:
        start_tree(mock_config())
    assert caught.value.fields == {"field": "magic", "value": "junk"}
    assert "error:" not in capfd.readouterr().err  # it is shown by whoever catches it


def test_a_plan_that_cannot_be_is_refused_with_its_type() -> None:
    with pytest.raises(ConfigError, match="cuda"):
        start_tree(mock_config(device="cuda"))


def test_a_tree_that_says_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "SERVE_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(StartFailed, match="exit code 3"):
        start_tree(mock_config())


def test_a_start_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_GPU", "hang")
    before = len(psutil.Process().children(recursive=True))
    with pytest.raises(ChannelTimeout):
        start_tree(mock_config(), timeout_s=1.0)
    eventually(lambda: len(psutil.Process().children(recursive=True)) == before)


def test_the_tree_ends_with_its_owner() -> None:
    code = (
        "import sys, time; from hybridgen.launch import tree;"
        f"tree.SERVE_COMMAND = {STAND_INS!r};"
        "from hybridgen.launch.config_sources import config_from_options as c;"
        "h = tree.start_tree(c({'model': 'mock'})); print(h.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], env=child_environment(), stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    family = [psutil.Process(pid), *psutil.Process(pid).children()]
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    eventually(lambda: not any(process.is_running() for process in family), 5.0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_neither_stops_the_tree_nor_keeps_it_alive() -> None:
    handle = start_tree(mock_config())
    child = os.fork()
    if child == 0:
        handle.stop()  # what an atexit handler of the parent would do here
        signal.pause()
    try:
        supervisor = psutil.Process(handle.pid)
        with Client(handle.uri) as client:
            assert client.ps().is_ready
        handle._line.close()  # as when the parent dies
        eventually(lambda: not supervisor.is_running() or supervisor.status() == "zombie", 5.0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        handle.stop()


def test_flags_give_the_same_configuration_again() -> None:
    config = mock_config(
        dtype="float32", disable_cpu_affinity=True, drain_timeout_s=0.5, mock_eos_bias=-1.25
    )
    flags = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in (flag.split("=", 1) for flag in config_flags(config))
    }
    assert resolve(flags, {}).config == config
    assert config_flags(Config()) == []
