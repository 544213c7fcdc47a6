"""Kills in mid-stream: the text is byte for byte the text of an undisturbed run."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator

import pytest

from hybridgen import SamplingParams
from tests.support.running_tree import RunningTree, running_tree

pytestmark = pytest.mark.slow

PROMPTS = [f"Tell me about number {n}." for n in range(8)]
NUM_KILLS = 20
NUM_OWNER_KILLS = 5
ANY_RESTARTS = {
    "pool_restart_limit": 1000,
    "gpu_restart_limit": 1000,
    "coscheduler_restart_limit": 1000,
}


def params(seed: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.9,
        top_p=0.95,
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=max_tokens,
        repetition_penalty=1.1,
        logprobs=2,
    )


def golden(tree: RunningTree, max_tokens: int) -> list[str]:
    streams = [
        tree.client.submit(prompt, params(n, max_tokens)) for n, prompt in enumerate(PROMPTS)
    ]
    return [stream.result().text for stream in streams]


def texts_with_kill(tree: RunningTree, role: str, max_tokens: int) -> list[str]:
    """Kill ``role`` once the first stream has shown some text, then read all to the end."""
    streams = [
        tree.client.submit(prompt, params(n, max_tokens)) for n, prompt in enumerate(PROMPTS)
    ]
    first = iter(streams[0])
    shown = ""
    while len(shown) < 10:
        shown += next(first).text
    old_pid = tree.kill(role)
    shown += "".join(chunk.text for chunk in first)
    texts = [shown, *(stream.result().text for stream in streams[1:])]
    tree.wait_replaced(role, old_pid)
    return texts


def texts_with_tokenizer_kill(tree: RunningTree, max_tokens: int) -> list[str]:
    """Kill the tokenizer while it holds the orders of all streams; stopped, it keeps them."""
    old_pid = tree.kill("tokenizer-0", signal.SIGSTOP)
    streams = [
        tree.client.submit(prompt, params(n, max_tokens)) for n, prompt in enumerate(PROMPTS)
    ]
    tree.kill("tokenizer-0")
    texts = [stream.result().text for stream in streams]
    tree.wait_replaced("tokenizer-0", old_pid)
    return texts


@pytest.fixture(scope="module")
def mock_tree() -> Iterator[RunningTree]:
    with running_tree(model="mock", mock_step_us=2000, **ANY_RESTARTS) as tree:
        yield tree


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["sampler-0", "detokenizer-0"])
def test_text_is_the_same_when_a_stateless_worker_is_killed(
    mock_tree: RunningTree, role: str
) -> None:
    expected = golden(mock_tree, 200)
    for _ in range(NUM_KILLS):
        assert texts_with_kill(mock_tree, role, 200) == expected


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["sampler", "detokenizer"])
def test_the_process_that_waited_goes_on_with_the_texts(mock_tree: RunningTree, role: str) -> None:
    expected = golden(mock_tree, 200)
    for _ in range(5):
        waiting = mock_tree.wait_standby(role)
        assert texts_with_kill(mock_tree, f"{role}-0", 200) == expected
        assert mock_tree.pid_of(f"{role}-0") == waiting


@pytest.mark.timeout(300)
def test_streams_stand_for_a_moment_only_when_their_one_sampler_is_killed() -> None:
    every, stands_s = 200, []
    options = {"mock_step_us": 4000, "mock_max_model_len": 16_384, "num_samplers": 1}
    with running_tree(model="mock", **options, **ANY_RESTARTS) as tree:
        num_tokens, last_s, longest_s = 0, time.monotonic(), 0.0
        for chunk in tree.client.submit("Go on.", params(0, every * (NUM_KILLS + 1))):
            now_s = time.monotonic()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
            before, num_tokens = num_tokens, num_tokens + len(chunk.token_ids)
            if num_tokens // every > before // every:
                stands_s.append(longest_s)
                longest_s = 0.0
                if len(stands_s) <= NUM_KILLS:
                    tree.kill("sampler-0")
    assert len(stands_s) == NUM_KILLS + 1
    # A process started only then takes a quarter of a second; with one that waits it is 20 ms.
    assert statistics.median(stands_s[1:]) < 0.15


@pytest.mark.timeout(300)
def test_requests_are_encoded_again_when_the_tokenizer_is_killed(mock_tree: RunningTree) -> None:
    expected = golden(mock_tree, 50)
    for _ in range(NUM_KILLS):
        assert texts_with_tokenizer_kill(mock_tree, 50) == expected


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["gpu-0", "coscheduler-0"])
def test_streams_continue_when_an_owner_is_killed(mock_tree: RunningTree, role: str) -> None:
    expected = golden(mock_tree, 200)
    for _ in range(NUM_OWNER_KILLS):
        assert texts_with_kill(mock_tree, role, 200) == expected


@pytest.mark.timeout(600)
def test_texts_of_the_demo_model_are_the_same_when_workers_are_killed() -> None:
    with running_tree(model="demo", **ANY_RESTARTS) as tree:
        expected = golden(tree, 24)
        for role in ("sampler-0", "detokenizer-0"):
            for _ in range(NUM_KILLS):
                assert texts_with_kill(tree, role, 24) == expected
        for _ in range(NUM_KILLS):
            assert texts_with_tokenizer_kill(tree, 24) == expected


def test_a_stop_is_heard_by_a_coscheduler_that_follows_one_that_died() -> None:
    with running_tree(model="mock", num_gateways=0, **ANY_RESTARTS) as tree:
        for name in ("detokenizer-0", "coscheduler-0"):  # the first has heard of a death
            tree.wait_replaced(name, tree.kill(name))
        asked_s = time.monotonic()
    assert time.monotonic() - asked_s < 15.0  # the limit for what runs is 30 s, and nothing does
