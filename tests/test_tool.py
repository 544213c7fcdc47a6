from __future__ import annotations

from typing import Any

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage, ChatPrompt
from hybridgen.tool import Function, FunctionCall, Tool, ToolCall, as_tools, is_function_name

SPEC: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does.",
        "parameters": {"type": "object", "properties": {"é": {"const": 2**70}}},
        "strict": True,
    },
}
DEEP: dict[str, Any] = {}
for _ in range(64):
    DEEP = {"items": DEEP}


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_tools_are_taken_as_users_write_them() -> None:
    parameters = '{"type": "object", "properties": {"é": {"const": 1180591620717411303424}}}'
    tool = Tool(Function("f", "Does.", parameters, strict=True))
    assert as_tools([SPEC]) == [tool]
    assert as_tools([tool]) == [tool]
    assert as_tools([named("g")]) == [Tool(Function("g"))]
    assert as_tools(()) == []


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([named("f"), named("a b")], "tools[1].function.name"),
        ([named("f"), named("f")], "tools[1].function.name"),
        ([named("x" * 65)], "tools[0].function.name"),
        ([named("f\n")], "tools[0].function.name"),
        ([named("")], "tools[0].function.name"),
        ([named(None)], "tools[0].function.name"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "custom", "function": {"name": "f"}}], "tools[0].type"),
        ([{**SPEC, "x\n": 1}], "tools[0].x\\n"),
        (["f"], "tools[0]"),
        ([named("f")] * 129, "tools"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}],
         "tools[0].function.parameters"),
        ([{"type": "function", "function": {"name": "f", "parameters": DEEP}}],
         "tools[0].function.parameters"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"a": float("nan")}}}],
         "tools[0].function.parameters"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"a": {1}}}}],
         "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_tool_is_named(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        as_tools(tools)
    assert refused.value.fields["param"] == param


def test_names_are_words() -> None:
    assert is_function_name("get_weather-2")
    assert not any(map(is_function_name, ("", "a.b", "f\n", "é", "x" * 65)))


def test_a_conversation_with_tools_is_made_of_what_users_write() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
    ]
    assert ChatPrompt.of(messages, [SPEC]) == ChatPrompt(
        [
            ChatMessage("user", "hi", name="ann"),
            ChatMessage("assistant", "", tool_calls=[ToolCall("1", FunctionCall("f", "{}"))]),
            ChatMessage("tool", "x", tool_call_id="1"),
        ],
        as_tools([SPEC]),
    )


@pytest.mark.parametrize(
    "messages",
    ["hi", [1, 2], [{"role": "assistant"}], [{"role": "assistant", "tool_calls": [{"id": "1"}]}]],
)
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidRequest):
        ChatPrompt.of(messages)
