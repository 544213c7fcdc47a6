from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from hybridgen.errors import HybridGenError
from hybridgen.server.exchange import Exchange
from hybridgen.server.openapi import openapi
from hybridgen.server.refusal import Reply
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.routing import Route
from hybridgen.server.schema import read_chat, read_completion
from tests.support.asgi_driver import ask
from tests.support.front_door import CHAT, COMPLETION, MODELS, make_app, play
from tests.support.scripted_backend import ScriptedBackend

LIMITS = RequestLimits(max_model_len=2048, vocab_size=256)
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return described(needs_key=False)


def described(needs_key: bool) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(openapi(MODELS, LIMITS, needs_key=needs_key))
    return document


def is_described(document: dict[str, Any], name: str, value: Any) -> bool:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    names = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert {"ChatBody", "CompletionBody", "ErrorAnswer"} <= names


EDGES = {
    "temperature": (0, 100, -0.1, 100.1),
    "top_p": (0.1, 1, 0, 1.1),
    "min_p": (0, 1, -0.1, 1.1),
    "top_k": (-1, 2**31 - 1, -2, 2**31),
    "repetition_penalty": (0.1, 100, 0, 100.1),
    "presence_penalty": (-2, 2, -2.1, 2.1),
    "frequency_penalty": (-2, 2, -2.1, 2.1),
    "seed": (0, 2**64 - 1, -1, 2**64),
    "n": (1, 128, 0, 129),
    "priority": (-1000, 1000, -1001, 1001),
    "max_tokens": (1, 2048, 0, None),
    "min_tokens": (0, 2**31 - 1, -1, 2**31),
    "logit_bias": ({"0": -100}, {"255": 100}, {"0": -100.1}, {"a": 1}),
    "stop": ("a", ["a"] * 4, "", ["a"] * 5),
    "stop_token_ids": ([0], [255] * 64, [256], [0] * 65),
    "model": ("demo", "org/demo-8b", "other", 1),
    "store": (False, None, True, 0),
}


@pytest.mark.parametrize("key", EDGES)
def test_the_description_ends_where_the_server_does(document: dict[str, Any], key: str) -> None:
    low, high, *refused = EDGES[key]
    for value in (low, high):
        assert is_described(document, "ChatBody", {"messages": MESSAGES, key: value})
        read_chat(json.dumps({"messages": MESSAGES, key: value}).encode(), LIMITS)
    for value in (one for one in refused if one is not None):
        body = {"messages": MESSAGES, key: value}
        assert not is_described(document, "ChatBody", body)
        if key != "model":  # which is looked up later
            with pytest.raises(HybridGenError):
                read_chat(json.dumps(body).encode(), LIMITS)


@pytest.mark.parametrize("prompt", ["a", [1], ["a", "b"], [[1], [2]]])
def test_every_kind_of_prompt_is_described(document: dict[str, Any], prompt: Any) -> None:
    assert is_described(document, "CompletionBody", {"prompt": prompt})
    read_completion(json.dumps({"prompt": prompt}).encode(), LIMITS)


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], None, [-1], [256], ["a", 1]])
def test_no_other_prompt_is_described(document: dict[str, Any], prompt: Any) -> None:
    assert not is_described(document, "CompletionBody", {"prompt": prompt})


def test_answers_are_as_described(document: dict[str, Any]) -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        chat = await ask(app, "POST", "/v1/chat/completions", {**CHAT, "n": 2})
        assert is_described(document, "ChatAnswer", chat.json)
        text = await ask(app, "POST", "/v1/completions", COMPLETION)
        assert is_described(document, "CompletionAnswer", text.json)
        refused = await ask(app, "POST", "/v1/completions", {})
        assert is_described(document, "ErrorAnswer", refused.json)

    play(scene())


def test_what_is_served_is_described_and_what_is_described_is_served(
    document: dict[str, Any],
) -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        served = await ask(app, "GET", "/openapi.json")
        assert served.json == document
        for path, methods in document["paths"].items():
            for method in methods:
                visit = await ask(app, method.upper(), path.replace("{model}", "demo"))
                assert str(visit.status) in methods[method]["responses"]

    play(scene())


def test_the_key_is_part_of_the_description_where_one_is_needed(document: dict[str, Any]) -> None:
    assert "securitySchemes" not in document["components"]
    with_key = described(needs_key=True)
    assert with_key["components"]["securitySchemes"] == {
        "key": {"type": "http", "scheme": "bearer"}
    }
    assert "security" in with_key["paths"]["/ps"]["get"]
    assert "security" not in with_key["paths"]["/health"]["get"]


def test_the_metrics_page_is_described_as_it_is_mounted(document: dict[str, Any]) -> None:
    async def serve(_: Exchange) -> Reply:
        return Reply(200, [], b"")

    assert "/metrics" not in document["paths"]
    for is_open in (False, True):
        route = Route("GET", "/metrics", serve, is_open=is_open)
        text = openapi(MODELS, LIMITS, needs_key=True, routes=[route])
        page = json.loads(text)["paths"]["/metrics"]["get"]
        assert ("security" not in page) == is_open
        assert page["responses"]["200"]["content"].keys() == {
            "text/plain",
            "application/openmetrics-text",
        }
        assert [(one["name"], one["in"]) for one in page["parameters"]] == [("compat", "query")]


def test_the_bound_of_grammars_is_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name, key in (
        ("NamedSchema", "schema"),
        ("StructuredOutputs", "json"),
        ("StructuredOutputs", "regex"),
        ("ChatBody", "tools"),
    ):
        assert "64 KiB" in json.dumps(schemas[name]["properties"][key])
