from __future__ import annotations

from typing import Any

import pytest

from hybridgen.request import ChatPrompt
from hybridgen.text.conversation import Conversation, conversation_of
from hybridgen.text.tool_calls.registry import FORMATS
from hybridgen.text.tool_calls.tool_prompt import spell_out
from tests.text.tool_calls.cut_text import call, parse

TOOL = {"type": "function", "function": {"name": "f", "description": "Does é."}}


def asked(number: int) -> dict[str, Any]:
    function = {"name": "f", "arguments": f'{{"a": {number}}}'}
    return {"id": str(number), "type": "function", "function": function}


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "Well.", "tool_calls": [asked(1), asked(2)]},
    {"role": "tool", "content": "one", "tool_call_id": "1"},
    {"role": "tool", "content": "two", "tool_call_id": "2"},
    {"role": "assistant", "content": "Done."},
]


def spelled(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], name: str = "hermes"
) -> Conversation:
    return spell_out(conversation_of(ChatPrompt.of(messages, tools)), FORMATS[name])


def test_roles_that_every_template_knows_are_left() -> None:
    turns, tools, _ = spelled(MESSAGES, [TOOL])
    assert tools is None
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user", "assistant"]
    assert all(turn.keys() == {"role", "content"} for turn in turns)
    assert '{"name": "f", "description": "Does é."}' in turns[0]["content"]
    assert turns[3]["content"] == (
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    )


def test_tools_follow_what_the_system_message_says() -> None:
    turns, _, _ = spelled([{"role": "system", "content": "Be brief."}, MESSAGES[0]], [TOOL])
    assert [turn["role"] for turn in turns] == ["system", "user"]
    assert turns[0]["content"].startswith("Be brief.\n\n")


def test_a_past_call_is_spelled_out_where_no_tools_are_offered_any_more() -> None:
    turns, _, _ = spelled(MESSAGES, [])
    assert turns[0]["role"] == "user"
    assert "<tool_call>" in turns[1]["content"]


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_spelled_out_is_what_the_parser_reads(name: str) -> None:
    turns, _, _ = spelled([{**MESSAGES[1], "content": None}], [], name)
    expected = [*call("f", '{"a": 1}'), *call("f", '{"a": 2}')]
    assert parse(FORMATS[name], [turns[0]["content"]]) == expected
