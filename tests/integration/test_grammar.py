"""Texts that must fit a grammar, through both doors of a real tree, whoever is killed meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from hybridgen import SamplingParams
from hybridgen.request import Grammar
from tests.support.free_port import free_port
from tests.support.http_caller import events, post
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NUM_KILLS = 5
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["big", "red", "old"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
LETTERS = Grammar("regex", "[a-z ]{200}")


class Door:
    """A tree, and the port of its gateway."""

    def __init__(self, tree: RunningTree, port: int, model: str) -> None:
        self.tree = tree
        self.port = port
        self.model = model

    def chat(self, text: str = "A thing.", **options: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 300,
            "seed": 7,
            **options,
        }


def door_of(model: str, **options: Any) -> Iterator[Door]:
    port = free_port()
    with running_tree(
        model=model, num_gateways=1, port=port, pool_restart_limit=100, **options
    ) as tree:
        yield Door(tree, port, model)


@pytest.fixture(scope="module")
def mock() -> Iterator[Door]:
    yield from door_of("mock", mock_step_us=1000, num_samplers=2)


@pytest.fixture(scope="module")
def demo() -> Iterator[Door]:
    yield from door_of("demo")


def test_answers_of_the_demo_model_fit_their_schema(demo: Door) -> None:
    answer = post(demo.port, CHAT, demo.chat(n=3, response_format=RESPONSE_FORMAT))
    assert answer.status == 200
    for choice in answer.json()["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_streamed_text_is_the_whole_text(mock: Door) -> None:
    body = mock.chat(response_format=RESPONSE_FORMAT, logprobs=True)
    whole = post(mock.port, CHAT, body).json()["choices"][0]
    chunks = list(events(mock.port, CHAT, {**body, "stream": True}))
    deltas = [chunk["choices"][0] for chunk in chunks if chunk != "[DONE]"]
    text = "".join(delta["delta"].get("content") or "" for delta in deltas)
    assert text == whole["message"]["content"]
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"regex": "[0-9]{3}-[0-9]{4}"}, "[0-9]{3}-[0-9]{4}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "<" /[a-f]{4}/ ">"'}, "<[a-f]{4}>"),
        ({"json": {"enum": [True, 7]}}, "true|7"),
    ],
)
def test_structured_outputs_hold(mock: Door, wanted: dict[str, Any], pattern: str) -> None:
    body = {"model": "mock", "prompt": "x", "max_tokens": 50, "structured_outputs": wanted}
    choice = post(mock.port, COMPLETIONS, body).json()["choices"][0]
    assert re.fullmatch(pattern, choice["text"])
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"uniqueItems": True}},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_by_its_key(
    mock: Door, keys: dict[str, Any], param: str, is_stream: bool
) -> None:
    answer = post(mock.port, CHAT, mock.chat(stream=is_stream, **keys))
    assert answer.status == 400
    assert answer.json()["error"]["param"] == param


def params(seed: int) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=300, temperature=0.9, grammar=LETTERS)


def texts_with_kill(tree: RunningTree, role: str | None) -> list[str]:
    """Of four streams; ``role`` is killed once the first has shown some text."""
    streams = [tree.client.submit(f"Prompt {n}", params(n)) for n in range(4)]
    first = iter(streams[0])
    shown = ""
    while len(shown) < 20:
        shown += next(first).text
    old_pid = tree.kill(role) if role else 0
    shown += "".join(chunk.text for chunk in first)
    texts = [shown, *(stream.result().text for stream in streams[1:])]
    if role:
        tree.wait_replaced(role, old_pid)
    return texts


@pytest.mark.parametrize("role", ["sampler-0", "gpu-0", "coscheduler-0", "detokenizer-0"])
def test_text_is_the_same_when_a_worker_is_killed(mock: Door, role: str) -> None:
    expected = texts_with_kill(mock.tree, None)
    assert all(re.fullmatch(LETTERS.text, text) for text in expected)
    for _ in range(NUM_KILLS if role == "sampler-0" else 1):
        assert texts_with_kill(mock.tree, role) == expected
