"""The full tree gives the published greedy ids of the embedded model, alone and in company."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridgen import LLM, SamplingParams

REFERENCE = json.loads(
    (Path(__file__).parent.parent / "fixtures" / "smollm2-greedy.json").read_text()
)["prompts"]
GREEDY = SamplingParams(temperature=0, max_tokens=48)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def llm():
    with LLM("demo", dtype="float32", max_num_seqs=64) as model:
        yield model


@pytest.mark.parametrize("number", range(len(REFERENCE)))
def test_greedy_ids_equal_the_reference_for_a_prompt_alone(llm: LLM, number: int) -> None:
    case = REFERENCE[number]
    (output,) = llm.generate([case["messages"]], GREEDY)
    assert output.num_prompt_tokens == len(case["prompt_ids"])
    assert output.token_ids[: case["agree"]] == case["greedy_ids"][: case["agree"]]


def test_greedy_ids_equal_the_reference_with_all_prompts_in_one_batch(llm: LLM) -> None:
    outputs = llm.generate([case["messages"] for case in REFERENCE], GREEDY)
    for output, case in zip(outputs, REFERENCE, strict=True):
        assert output.token_ids[: case["agree"]] == case["greedy_ids"][: case["agree"]]


def test_prompt_ids_equal_the_reference(llm: LLM) -> None:
    for case in REFERENCE:
        assert llm.tokenize(case["messages"]) == case["prompt_ids"]


def test_id_prompts_and_message_prompts_give_the_same_answer(llm: LLM) -> None:
    case = REFERENCE[0]
    by_ids, by_messages = llm.generate([case["prompt_ids"], case["messages"]], GREEDY)
    assert by_ids.token_ids == by_messages.token_ids
    assert by_ids.text == by_messages.text


def test_64_streams_at_once_give_the_ids_of_one_at_a_time(llm: LLM) -> None:
    """Kernels accumulate in an order that does not depend on the batch: equal bit for bit."""
    prompts = [f"Name {n} things that are {w}." for n in range(2, 10) for w in WORDS]
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=1)
    together = llm.generate(prompts, params)
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = llm.generate([prompt], params)
        assert alone.token_ids == output.token_ids
        assert alone.logprobs == output.logprobs


WORDS = ("red", "round", "cold", "loud", "old", "small", "sweet", "heavy")
