from __future__ import annotations

import json
from typing import Any

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage
from hybridgen.server.conversation import Message, as_conversation
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.schema import read_chat
from hybridgen.tool import FunctionCall, ToolCall

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
    named = ChatMessage(known, "x", name="n")
    assert turns({"role": role, "content": "x", "name": "n"}) == [named]


@pytest.mark.parametrize("role", ["function", "User", "", "x\n" * 1000])
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
        ("function_call", {"name": "f"}),
        ("audio", {"id": "a"}),
        ("refusal", "no"),
        ("annotations", [1]),
    ],
)
def test_what_a_message_cannot_carry_yet_is_refused_by_name(key: str, value: Any) -> None:
    assert param_of({"role": "assistant", "content": "x", key: value}) == f"messages[0].{key}"


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_calls_and_their_results_are_passed_on() -> None:
    sent = turns(
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "f"},
    )
    call = ToolCall("call_1", FunctionCall("f", "{}"))
    assert sent == [
        ChatMessage("assistant", "", tool_calls=[call]),
        ChatMessage("tool", "sunny", name="f", tool_call_id="call_1"),
    ]


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "not JSON", '{"a": 1'])
def test_arguments_that_a_model_got_wrong_can_be_sent_back(arguments: str) -> None:
    function = {"name": "f", "arguments": arguments}
    (turn,) = turns({"role": "assistant", "tool_calls": [{**CALL, "function": function}]})
    assert turn.tool_calls[0].function.arguments == arguments


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "tool_calls"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": "1"}, "content"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "tool_call_id"),
        ({"role": "assistant", "tool_calls": []}, "content"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}, "tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "x"}]}, "tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{**CALL, "index": 0}]}, "tool_calls[0].index"),
        (
            {"role": "assistant", "tool_calls": [CALL, {**CALL, "function": {"name": "f"}}]},
            "tool_calls[1].function.arguments",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{**CALL, "function": {"name": "f\n", "arguments": "{}"}}],
            },
            "tool_calls[0].function.name",
        ),
        ({"role": "assistant", "tool_calls": [CALL] * 129}, "tool_calls"),
        ({"role": "user", "content": "x", "name": "n" * 65}, "name"),
    ],
)
def test_what_is_wrong_with_calls_and_results_is_named(message: Any, param: str) -> None:
    assert param_of(message) == f"messages[0].{param}"


def test_the_number_of_messages_is_bounded() -> None:
    message = {"role": "user", "content": "x"}
    assert len(turns(*[message] * 3)) == 3
    assert param_of(*[message] * 4) == "messages"
    assert param_of() == "messages"


def test_what_no_message_can_carry_is_refused_here() -> None:
    messages = [Message(role="user", content="Hi")]
    with pytest.raises(InvalidRequest, match="too large"):
        as_conversation(messages, RequestLimits(), template_kwargs={"count": 2**70})
