"""kill -9 of the supervisor: nothing survives it, nothing is left, the next start works at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from hybridgen import SamplingParams
from hybridgen.client import Client
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree

pytestmark = pytest.mark.slow


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
            _, alive = psutil.wait_procs([supervisor, *children], timeout=1.0)
        assert not alive
        assert set(os.listdir("/dev/shm")) == before
