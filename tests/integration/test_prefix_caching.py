"""Shared KV blocks change no token of a real model, and save the work they promise to save."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridgen import LLM, SamplingParams
from hybridgen.request import RequestOutput
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.http_caller import events, post
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TEXT = "The quick brown fox jumps over the lazy dog and runs away. " * 20
#: Greedy, seeded, and with log-probabilities, which would show the last bit of a difference.
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, logprobs=2),
    SamplingParams(temperature=0.9, seed=5, max_tokens=24),
    SamplingParams(temperature=1.2, seed=6, max_tokens=24, logprobs=1),
]


def bits(outputs: Sequence[RequestOutput]) -> list[object]:
    return [(output.token_ids, output.logprobs) for output in outputs]


def conversation(llm: LLM) -> list[RequestOutput]:
    """Siblings, the same prompt again, a next turn, and another question about the same text."""
    text = llm.tokenize(TEXT)[:131]
    outputs = llm.generate([text] * len(PARAMS), PARAMS)
    outputs += llm.generate([text], PARAMS[0])
    outputs += llm.generate([text + outputs[0].token_ids + text[:9]], PARAMS[1])
    outputs += llm.generate([text[:100] + text[:30]], PARAMS[2])
    return outputs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_texts_and_log_probabilities_are_the_same_with_and_without(dtype: str) -> None:
    with LLM("demo", dtype=dtype, num_gateways=0, enable_prefix_caching=False) as llm:
        alone = conversation(llm)
    with LLM("demo", dtype=dtype, num_gateways=0) as llm:
        shared = conversation(llm)
    assert bits(shared) == bits(alone)
    assert [output.num_cached_tokens for output in alone] == [0] * 6
    assert [output.num_cached_tokens for output in shared] == [0, 128, 128, 128, 144, 96]


def prefilled(tree: RunningTree) -> int:
    processes = tree.client.ps().processes
    return next(p.counters["prefill_tokens"] for p in processes if p.name == "gpu-0")


def test_eight_of_one_prompt_compute_it_once() -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    with running_tree(model="demo", num_gateways=0) as tree:
        ids = tree.client.tokenize(TEXT)[:200]
        streams = [tree.client.submit(ids, params) for _ in range(8)]
        texts = {tuple(stream.result().token_ids) for stream in streams}
        assert len(texts) == 1
        # 12 blocks of 16 tokens are shared.
        eventually(lambda: prefilled(tree) == 200 + 7 * 8, 5.0)


def test_usage_tells_what_was_found_in_the_cache() -> None:
    port = free_port()
    body = {"model": "mock", "prompt": list(range(1, 101)), "n": 3, "max_tokens": 4}
    with running_tree(model="mock", num_gateways=1, port=port):
        answers = [post(port, "/v1/completions", body) for _ in range(2)]
        stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
        *_, last, _done = events(port, "/v1/completions", stream)
    usages = [*(answer.json()["usage"] for answer in answers), last["usage"]]
    assert [usage["prompt_tokens"] for usage in usages] == [100] * 3
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, 96, 96]


def test_a_killed_device_process_takes_its_blocks_with_it() -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    with running_tree(model="demo", num_gateways=0) as tree:
        ids = tree.client.tokenize(TEXT)[:100]
        first = tree.client.submit(ids, params).result()
        tree.wait_replaced("gpu-0", tree.kill("gpu-0"))
        again = tree.client.submit(ids, params).result()
        assert (again.token_ids, again.num_cached_tokens) == (first.token_ids, 0)
