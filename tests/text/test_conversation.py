from __future__ import annotations

from typing import Any

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage, ChatPrompt
from hybridgen.text.conversation import conversation_of, texts_of
from hybridgen.tool import Function, FunctionCall, Tool, ToolCall

CALL = ToolCall("id1", FunctionCall("f", '{"a": [1]}'))


def arguments_view(arguments: str) -> Any:
    call = ToolCall("id1", FunctionCall("f", arguments))
    prompt = ChatPrompt([ChatMessage("assistant", "", tool_calls=[call])])
    return conversation_of(prompt).messages[0]["tool_calls"][0]["function"]["arguments"]


def test_templates_are_given_what_they_are_written_for() -> None:
    prompt = ChatPrompt(
        [
            ChatMessage("user", "hi", name="ann"),
            ChatMessage("assistant", "", tool_calls=[CALL]),
            ChatMessage("tool", "x", tool_call_id="id1"),
        ],
        [Tool(Function("f", "Does.", '{"type": "object"}', strict=True)), Tool(Function("g"))],
    )
    function = {"name": "f", "arguments": {"a": [1]}}
    assert conversation_of(prompt).messages == [
        {"role": "user", "content": "hi", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "id1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "x", "tool_call_id": "id1"},
    ]
    described = {"name": "f", "description": "Does.", "parameters": {"type": "object"}}
    assert conversation_of(prompt).tools == [
        {"type": "function", "function": described},
        {"type": "function", "function": {"name": "g"}},
    ]
    assert set("".join(texts_of(prompt))) == set('hiannid1f{"a": [1]}xDoes.{"type": "object"}g')


def test_no_tools_are_none() -> None:
    assert conversation_of(ChatPrompt([ChatMessage("user", "hi")])).tools is None


def test_arguments_that_are_no_object_stay_text() -> None:
    for broken in ("{", "[1]", "5", '{"a": 1', '{"a":' * 100 + "1" + "}" * 100):
        assert arguments_view(broken) == broken
    assert arguments_view(" ") == {}


@pytest.mark.parametrize("parameters", ["", "{", "[]", '{"a":' * 65 + "1" + "}" * 65])
def test_parameters_that_are_no_schema_are_refused(parameters: str) -> None:
    prompt = ChatPrompt([ChatMessage("user", "hi")], [Tool(Function("f", None, parameters))])
    with pytest.raises(InvalidRequest) as refused:
        conversation_of(prompt)
    assert refused.value.fields["param"] == "tools"
