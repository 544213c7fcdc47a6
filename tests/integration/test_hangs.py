"""Processes that stand still: below the limit nothing happens, at the limit they are replaced.

Either way every text is byte for byte that of an undisturbed run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridgen import SamplingParams
from hybridgen.client.stream import Stream
from tests.support.eventually import eventually
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NUM_STREAMS = 4
#: Half of it until a process is marked.
LIMIT_S = 5.0
ROLES = ["gpu-0", "sampler-0", "tokenizer-0", "detokenizer-0", "coscheduler-0"]
OPTIONS = {
    "model": "mock",
    "mock_step_us": 4000,
    "num_cpu_threads": 2,
    "hang_timeout_s": LIMIT_S,
    "pool_restart_limit": 1000,
    "gpu_restart_limit": 1000,
    "coscheduler_restart_limit": 1000,
}


def submit(tree: RunningTree, num_tokens: int) -> list[Stream]:
    return [
        tree.client.submit(
            f"Number {n}?",
            SamplingParams(temperature=0.9, seed=n, max_tokens=num_tokens, min_tokens=num_tokens),
        )
        for n in range(NUM_STREAMS)
    ]


def texts(streams: list[Stream]) -> list[str]:
    return [stream.result().text for stream in streams]


def process(tree: RunningTree, name: str) -> tuple[int, str, str]:
    """Restarts, state, last exit."""
    (found,) = (p for p in tree.client.ps().processes if p.name == name)
    return found.restarts, found.state, found.last_exit


def time_until(predicate: Callable[[], bool], timeout_s: float) -> float:
    started_s = time.monotonic()
    eventually(predicate, timeout_s)
    return time.monotonic() - started_s


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTree]:
    folder = tmp_path_factory.mktemp("incidents")
    with running_tree(
        **OPTIONS, gpu_hang_timeout_s=LIMIT_S, incident_dir=str(folder), num_gateways=0
    ) as started:
        started.incidents = folder
        yield started


@pytest.mark.parametrize("name", ROLES)
def test_a_process_that_stops_for_less_than_its_limit_goes_on(tree: RunningTree, name: str) -> None:
    expected = texts(submit(tree, 200))
    before = process(tree, name)[0]
    streams = submit(tree, 200)
    next(iter(streams[0]))
    pid = tree.kill(name, signal.SIGSTOP)
    eventually(lambda: process(tree, name)[1] == "unhealthy", LIMIT_S)
    os.kill(pid, signal.SIGCONT)
    assert texts(streams)[1:] == expected[1:]
    eventually(lambda: process(tree, name)[1] == "ready", 5.0)
    assert process(tree, name)[0] == before


@pytest.mark.parametrize("name", ROLES)
def test_a_process_that_stops_for_good_is_replaced_and_leaves_a_report(
    tree: RunningTree, name: str
) -> None:
    expected = texts(submit(tree, 200))
    before = process(tree, name)[0]
    streams = submit(tree, 200)
    next(iter(streams[0]))
    pid = tree.kill(name, signal.SIGSTOP)
    tree.wait_replaced(name, pid, 3 * LIMIT_S)
    with pytest.raises(ProcessLookupError):  # there is nobody left who could wake and write
        os.kill(pid, signal.SIGCONT)
    assert texts(streams)[1:] == expected[1:]
    restarts, _, last_exit = process(tree, name)
    assert restarts == before + 1
    assert "after it had stood still for" in last_exit
    (report,) = tree.incidents.glob(f"*{name}.incident.txt")
    assert f"pid {pid}," in report.read_text()


def test_a_step_that_stalls_makes_the_tree_unready_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYBRIDGEN_FAULT", "gpu.step:stall=60s@300")
    with running_tree(
        **OPTIONS, gpu_hang_timeout_s=15.0, incident_dir=str(tmp_path), num_gateways=0
    ) as tree:
        expected = texts(submit(tree, 100))
        streams = submit(tree, 400)
        time_until(lambda: tree.client.health().last_step_age_s > 0.5, 30.0)
        assert time_until(lambda: not tree.client.health().is_ready, 12.0) < 11.5
        assert "gpu-0" in tree.client.health().status or "no step" in tree.client.health().status
        whole = texts(streams)
        assert [text.startswith(begin) for text, begin in zip(whole, expected, strict=True)] == [
            True
        ] * NUM_STREAMS
        eventually(lambda: tree.client.health().is_ready, 30.0)
        (report,) = tmp_path.glob("*gpu-0.incident.txt")
        assert "in act" in report.read_text()  # of hybridgen/fault.py, where it sleeps


def test_an_idle_tree_whose_gpu_process_is_stuck_becomes_unready(tmp_path: Path) -> None:
    with running_tree(**OPTIONS, incident_dir=str(tmp_path), num_gateways=0) as tree:
        eventually(lambda: tree.client.health().is_ready, 30.0)
        pid = tree.kill("gpu-0", signal.SIGSTOP)
        assert time_until(lambda: not tree.client.health().is_ready, 20.0) < 12.0
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: tree.client.health().is_ready, 30.0)
