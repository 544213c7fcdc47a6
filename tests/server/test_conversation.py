from __future__ import annotations

import json
from typing import Any

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.schema import read_chat

LIMITS = RequestLimits(max_messages=3)


def turns(*messages: dict[str, Any]) -> list[ChatMessage]:
    body = json.dumps({"messages": messages}).encode()
    return read_chat(body, LIMITS).prompts[0].messages


def param_of(*messages: dict[str, Any]) -> Any:
    with pytest.raises(InvalidRequest) as refused:
        turns(*messages)
    return refused.value.fields["param"]


@pytest.mark.parametrize(
    ("role", "known"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
    ],
)
def test_roles_become_those_that_templates_know(role: str, known: str) -> None:
    assert turns({"role": role, "content": "x", "name": "n"}) == [ChatMessage(known, "x")]


@pytest.mark.parametrize("role", ["tool", "function", "User", "", "x\n" * 1000])
def test_another_role_is_refused(role: str) -> None:
    assert param_of({"role": role, "content": "x"}) == "messages[0].role"


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert turns({"role": "user", "content": parts}) == [ChatMessage("user", "a b")]
    assert turns({"role": "user", "content": ""}) == [ChatMessage("user", "")]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        (
            {"type": "image_url", "image_url": {"url": "http://x"}},
            "messages[1].content[0].image_url",
        ),
        ({"type": "refusal", "text": "no"}, "messages[1].content[0].type"),
        ({"text": "x"}, "messages[1].content[0].type"),
        ("x", "messages[1].content[0]"),
    ],
)
def test_a_part_that_is_no_text_is_refused(part: Any, param: str) -> None:
    first = {"role": "system", "content": "x"}
    assert param_of(first, {"role": "user", "content": [part]}) == param


def test_a_message_needs_content() -> None:
    for message in ({"role": "assistant"}, {"role": "assistant", "content": None}):
        assert param_of(message) == "messages[0].content"


def test_an_answer_of_ours_can_be_sent_back() -> None:
    sent_back = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert turns(sent_back) == [ChatMessage("assistant", "hello")]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tool_calls", [{"id": "1"}]),
        ("tool_call_id", "1"),
        ("function_call", {"name": "f"}),
        ("audio", {"id": "a"}),
        ("refusal", "no"),
        ("annotations", [1]),
    ],
)
def test_what_a_message_cannot_carry_yet_is_refused_by_name(key: str, value: Any) -> None:
    assert param_of({"role": "assistant", "content": "x", key: value}) == f"messages[0].{key}"


def test_the_number_of_messages_is_bounded() -> None:
    message = {"role": "user", "content": "x"}
    assert len(turns(*[message] * 3)) == 3
    assert param_of(*[message] * 4) == "messages"
    assert param_of() == "messages"
