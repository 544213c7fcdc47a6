"""Tools for models whose chat template knows nothing of them.

The functions are described in the system message, calls become part of what the assistant said,
and their results are what the user says next. The wording is ours; the form is the one that
models of the format's family were trained on.
"""

from __future__ import annotations

import json
from typing import Any

from hybridgen.text.conversation import Conversation
from hybridgen.text.tool_calls.call_format import CallFormat

_RESULT = "<tool_response>\n{}\n</tool_response>"


def spell_out(conversation: Conversation, format_: CallFormat) -> Conversation:
    """The same conversation without tools, calls and results as such."""
    messages: list[dict[str, Any]] = []
    was_result = False
    for message in conversation.messages:
        is_result = message["role"] == "tool"
        if not is_result:
            messages.append(_said(message, format_))
        elif was_result:  # the results of one turn come together
            messages[-1]["content"] += "\n" + _RESULT.format(message["content"])
        else:
            messages.append({"role": "user", "content": _RESULT.format(message["content"])})
        was_result = is_result
    if conversation.tools:
        _add_to_system(messages, described(conversation.tools, format_))
    return Conversation(messages, None, conversation.template_kwargs)


def described(tools: list[dict[str, Any]], format_: CallFormat) -> str:
    """What the model is told about its tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = f'{{"name": "function_name", "{format_.arguments_key}": {{"argument": "value"}}}}'
    return (
        "You can call the functions that are described here as JSON, one a line:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call a function, answer with its name and its arguments in this form, once for each "
        f"call:\n{_marked([example], format_)}\n"
        "The results come in the next message. If no function helps, answer in plain words."
    )


def written_calls(calls: list[dict[str, Any]], format_: CallFormat) -> str:
    """Calls as a model of the format's family writes them."""
    return _marked([_written(call["function"], format_) for call in calls], format_)


def _said(message: dict[str, Any], format_: CallFormat) -> dict[str, Any]:
    said = {key: value for key, value in message.items() if key != "tool_calls"}
    if calls := message.get("tool_calls"):
        parts = (said["content"], written_calls(calls, format_))
        said["content"] = "\n".join(part for part in parts if part)
    return said


def _add_to_system(messages: list[dict[str, Any]], text: str) -> None:
    if messages and messages[0]["role"] == "system":
        messages[0]["content"] = f"{messages[0]['content']}\n\n{text}"
    else:
        messages.insert(0, {"role": "system", "content": text})


def _written(function: dict[str, Any], format_: CallFormat) -> str:
    call = {"name": function["name"], format_.arguments_key: function["arguments"]}
    return json.dumps(call, ensure_ascii=False)


def _marked(calls: list[str], format_: CallFormat) -> str:
    if format_.closer:
        return "\n".join(f"{format_.opener}\n{call}\n{format_.closer}" for call in calls)
    before, between, after = format_.around_calls
    opener = "" if format_.is_opener_rare else format_.opener
    return f"{opener}{before}{between.join(calls)}{after}"
