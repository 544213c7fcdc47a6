"""kill -9 of the supervisor: nothing survives it, nothing is left, the next start works at once."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

from hybridgen import SamplingParams
from hybridgen.client import Client
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree
from tests.support.eventually import eventually

pytestmark = pytest.mark.slow


def are_gone(processes: list[psutil.Process]) -> bool:
    return all(is_gone(process) for process in processes)


def is_gone(process: psutil.Process) -> bool:
    """Ended; an orphan may stay a zombie where nobody reaps it."""
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.timeout(120)
def test_nothing_survives_a_killed_supervisor_and_the_next_start_works(tmp_path: Path) -> None:
    config = config_from_options({"model": "mock", "runtime_dir": str(tmp_path / "run")})
    before = set(os.listdir("/dev/shm"))
    for _ in range(3):
        handle = start_tree(config)
        supervisor = psutil.Process(handle.pid)
        children = supervisor.children(recursive=True)
        assert len(children) >= 5
        with Client(handle.uri) as client:
            stream = client.submit("hello", SamplingParams(max_tokens=500, min_tokens=500))
            next(iter(stream))
            supervisor.send_signal(signal.SIGKILL)
            eventually(partial(are_gone, [supervisor, *children]), 1.0)
        handle.stop()
        assert set(os.listdir("/dev/shm")) == before
