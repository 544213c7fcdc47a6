"""Workers stay lean: shared-memory views pull in neither ZeroMQ nor numpy nor torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("zmq", "numpy", "torch", "posix_ipc", "psutil", "asyncio")


def loaded_by(module: str) -> set[str]:
    script = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


@pytest.mark.parametrize("module", ["logit_ring", "slot_table", "board", "control", "doorbell"])
def test_views_load_nothing_heavy(module: str) -> None:
    assert loaded_by(f"hybridgen.ipc.{module}") == set()


def test_segments_load_only_posix_ipc() -> None:
    assert loaded_by("hybridgen.ipc.segment") == {"posix_ipc"}


def test_sync_channels_load_neither_numpy_nor_torch() -> None:
    assert not loaded_by("hybridgen.ipc.channel") & {"numpy", "torch", "psutil"}
