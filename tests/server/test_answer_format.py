from __future__ import annotations

import json
from typing import Any

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.request import Grammar
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.schema import read_chat, read_completion

LIMITS = RequestLimits(max_model_len=100, vocab_size=1000)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(**keys: Any) -> Grammar | None:
    body = {"messages": [{"role": "user", "content": "hi"}], **keys}
    return read_chat(json.dumps(body).encode(), LIMITS).params.grammar


def refused(**keys: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        chat(**keys)
    return error.value


def named(schema: Any, **keys: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **keys}}


@pytest.mark.parametrize("value", [None, {"type": "text"}])
def test_a_text_may_be_anything(value: Any) -> None:
    assert chat(response_format=value) is None
    assert chat(structured_outputs=None) is None


def test_response_format_asks_for_json() -> None:
    assert chat(response_format={"type": "json_object"}) == Grammar(
        "json_object", "", "response_format"
    )
    for keys in ({}, {"strict": True, "description": "d"}, {"strict": False}):
        grammar = chat(response_format=named(SCHEMA, **keys))
        assert grammar is not None
        assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", SCHEMA)
        assert grammar.param == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ({"json": SCHEMA}, "json_schema", json.dumps(SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, "json_schema", json.dumps(SCHEMA)),
        ({"json": True}, "json_schema", "true"),
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"choice": ["a", 'b"']}, "lark", r'start: "a" | "b\""'),
        ({"json_object": True}, "json_object", ""),
        ({"json_object": False, "regex": "a"}, "regex", "a"),
    ],
)
def test_structured_outputs_ask_for_one_thing(value: Any, kind: str, text: str) -> None:
    grammar = chat(structured_outputs=value)
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (kind, text)
    assert grammar.param.startswith("structured_outputs.")


def test_completions_take_the_same_keys() -> None:
    body = json.dumps({"prompt": "x", "structured_outputs": {"regex": "a"}}).encode()
    assert read_completion(body, LIMITS).params.grammar is not None


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "text", "more": 1}}, "response_format.more"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": named({"not": {}})}, "response_format.json_schema.schema"),
        ({"response_format": named([1])}, "response_format.json_schema.schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a" * 65_537}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_asks_for_something_else_is_refused_by_its_key(
    keys: dict[str, Any], param: str
) -> None:
    assert str(refused(**keys).fields["param"]).startswith(param)


def test_a_text_format_leaves_room_for_structured_outputs() -> None:
    assert chat(response_format={"type": "text"}, structured_outputs={"regex": "a"}) is not None


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"response_format": named({"title": "a" * 65_536})}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": {"title": "a" * 65_536}}}, "structured_outputs.json"),
        ({"response_format": named('{"type": "object"}')}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": '{"a": 1, "a": 2}'}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"json": '{"title": "a", "title": "b"}'}},
            "structured_outputs.json",
        ),
    ],
)
def test_a_schema_is_refused_by_the_key_that_holds_it(keys: dict[str, Any], param: str) -> None:
    assert refused(**keys).fields["param"] == param


def test_what_is_too_large_is_told_the_limit_in_bytes() -> None:
    error = refused(response_format=named({"title": "a" * 65_536}))
    assert error.fields["limit"] == "[1, 65536] bytes"
