"""A request that kills ends with ``poison_request``; all others get the text they always get."""

from __future__ import annotations

import pytest

from hybridgen import SamplingParams
from hybridgen.client.stream import Stream
from hybridgen.errors import PoisonRequest
from tests.support.eventually import eventually
from tests.support.faulty_tree import faulty_tree
from tests.support.faulty_workers import POISON_SEED, POISON_TEXT
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NUM_TOKENS = 100
NUM_STREAMS = 6
OPTIONS = {
    "model": "mock",
    "mock_step_us": 2000,
    "num_cpu_threads": 2,
    "num_samplers": 1,
    "num_gateways": 0,
}


def submit(tree: RunningTree, prompt: str, seed: int) -> Stream:
    params = SamplingParams(
        temperature=0.9, seed=seed, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS
    )
    return tree.client.submit(prompt, params)


def good(tree: RunningTree) -> list[Stream]:
    return [submit(tree, f"Number {n}?", n) for n in range(NUM_STREAMS)]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    with running_tree(**OPTIONS) as tree:
        return [stream.result().text for stream in good(tree)]


def restarts(tree: RunningTree, role: str) -> int:
    return sum(p.restarts for p in tree.client.ps().processes if p.role == role)


@pytest.mark.parametrize(
    ("faulty", "deaths"),
    [("tokenizer", 2), ("detokenizer", 2), ("sampler", 2), ("gpu-prefill", 2), ("gpu-decode", 3)],
)
def test_who_kills_is_ended_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, expected: list[str], faulty: str, deaths: int
) -> None:
    with faulty_tree(monkeypatch, faulty, **OPTIONS) as tree:
        # First, since a sampler does its rows in order, and what spoils it here comes before all.
        bad = submit(tree, POISON_TEXT, POISON_SEED)
        streams = good(tree)
        with pytest.raises(PoisonRequest):
            bad.result()
        assert [stream.result().text for stream in streams] == expected
        # Of the sampler and the gpu process one more may die before it hears of the verdict.
        assert restarts(tree, faulty.partition("-")[0]) in (deaths, deaths + 1)
        eventually(lambda: tree.client.health().is_ready, 10.0)


def test_a_device_that_fails_ends_the_gpu_process_with_its_reason_and_streams_go_on(
    monkeypatch: pytest.MonkeyPatch, expected: list[str]
) -> None:
    with faulty_tree(monkeypatch, "gpu-lost", **OPTIONS) as tree:
        assert [stream.result().text for stream in good(tree)] == expected
        (gpu,) = (p for p in tree.client.ps().processes if p.role == "gpu")
        assert gpu.restarts == 1
        assert gpu.last_exit == "exited with code 70: the device failed"
