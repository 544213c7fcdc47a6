from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from hybridgen.config import Config
from hybridgen.launch import device_choice
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.device_choice import (
    DeviceChoice,
    find_device,
    judge_probe,
    resolve_device,
    run_probe,
)

H200 = "9.0 13.0 150754820096 NVIDIA H200"
CUDA = DeviceChoice("cuda", "NVIDIA H200, 140.4 GiB, driver for CUDA 13.0")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_device_that_was_asked_for_is_not_looked_for(device: str) -> None:
    config = config_from_options({"device": device})
    assert resolve_device(config, "gguf", lambda: pytest.fail("looked")) == (config, "")


def test_auto_is_what_is_found() -> None:
    config, reason = resolve_device(Config(), "gguf", lambda: CUDA)
    assert (config.device.device, reason) == CUDA
    config, reason = resolve_device(Config(), "mock", lambda: CUDA)
    assert (config.device.device, reason) == ("cpu", "the mock model needs no device")


def test_the_probe_is_judged_by_what_the_device_can_do() -> None:
    assert judge_probe(H200, True) == CUDA
    old = judge_probe("7.0 12.4 16935682048 Tesla V100", True)
    assert old.device == "cpu"
    assert "compute capability 7.0, at least 8.0" in old.reason
    none = judge_probe("the NVIDIA driver shows no device", False)
    assert none == DeviceChoice("cpu", "the NVIDIA driver shows no device")


def fake_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, cuda: str) -> None:
    folder.joinpath("version.py").write_text(f"from typing import Optional\n{cuda}\n")
    spec = ModuleSpec("torch", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)


@pytest.mark.parametrize("line", ["cuda: Optional[str] = None", "", "cuda = None"])
def test_a_torch_for_the_cpu_decides_without_asking_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    fake_torch(monkeypatch, tmp_path, line)
    monkeypatch.setattr(device_choice, "run_probe", lambda: pytest.fail("asked"))
    assert find_device() == DeviceChoice("cpu", "the installed torch has no CUDA support")


def test_with_torch_and_packages_the_driver_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_torch(monkeypatch, tmp_path, "cuda: Optional[str] = '12.8'")
    monkeypatch.setattr(device_choice, "run_probe", lambda: (H200, True))
    monkeypatch.setattr(device_choice, "PACKAGES", ("pytest", "no-such-package"))
    assert find_device().reason.startswith("no-such-package not installed (pip install")
    monkeypatch.setattr(device_choice, "PACKAGES", ("pytest",))
    assert find_device() == CUDA


def test_a_driver_that_hangs_fails_or_dies_is_a_reason_for_the_cpu() -> None:
    hung = run_probe("import time; time.sleep(60)", 0.05)
    assert hung == ("the NVIDIA driver did not answer within 0 s", False)
    assert run_probe("import sys; sys.exit('broken')") == ("broken", False)
    died = run_probe("import os; os.abort()")
    assert died == ("the driver's probe ended with -6", False)
    assert run_probe("print('1 2 3 four five')") == ("1 2 3 four five", True)


def test_the_real_probe_answers_and_leaves_torch_alone() -> None:
    said, is_good = run_probe()
    assert is_good == (judge_probe(said, is_good).device == "cuda") or "capability" in said
    code = "from hybridgen.launch.device_choice import find_device; find_device(); import sys; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
