"""A conversation in the shape that chat templates are written for."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage, ChatPrompt
from hybridgen.tool import MAX_SCHEMA_DEPTH, Tool, ToolCall, nests_deeper


class Conversation(NamedTuple):
    """What a template is given. A key stands in a message only when the message has it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    """Each as ``{"type": "function", "function": {…}}``."""
    template_kwargs: dict[str, Any] | None = None
    """Further variables for the template."""


def conversation_of(prompt: ChatPrompt) -> Conversation:
    """``prompt`` for a template.

    Raises:
        InvalidRequest: a tool's parameters are no JSON object.
    """
    messages = [message_view(message) for message in prompt.messages]
    tools = [_tool_view(tool) for tool in prompt.tools]
    return Conversation(messages, tools or None, prompt.template_kwargs or None)


def message_view(message: ChatMessage) -> dict[str, Any]:
    """One turn."""
    view: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        view["name"] = message.name
    if message.tool_calls:
        view["tool_calls"] = [_call_view(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        view["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        view["reasoning_content"] = message.reasoning_content
    return view


def texts_of(prompt: ChatPrompt) -> list[str]:
    """Every text that users wrote into ``prompt``."""
    texts = [text for turn in prompt.messages for text in _message_texts(turn)]
    for tool in prompt.tools:
        function = tool.function
        texts += [function.name, function.description or "", function.parameters or ""]
    if prompt.template_kwargs:
        texts.append(json.dumps(prompt.template_kwargs, ensure_ascii=False))
    return texts


def _message_texts(message: ChatMessage) -> list[str]:
    texts = [message.content, message.name or "", message.tool_call_id or ""]
    texts.append(message.reasoning_content or "")
    for call in message.tool_calls:
        texts += [call.id, call.function.name, call.function.arguments]
    return texts


def _call_view(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments_view(call.function.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _arguments_view(arguments: str) -> Any:
    """An object, as templates expect it; text that is none stays what the model wrote."""
    if not arguments.strip():
        return {}
    value = _parsed(arguments)
    return arguments if value is None else value


def _tool_view(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.function.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    if tool.function.parameters is not None:
        function["parameters"] = _parameters_view(tool)
    return {"type": "function", "function": function}


def _parameters_view(tool: Tool) -> dict[str, Any]:
    value = _parsed(tool.function.parameters or "")
    if value is not None:
        return value
    raise InvalidRequest(
        "a tool's parameters are no JSON schema",
        param="tools",
        value=tool.function.name,
        limit=f"a JSON object nested at most {MAX_SCHEMA_DEPTH} deep",
    )


def _parsed(text: str) -> dict[str, Any] | None:
    """A JSON object of moderate depth; None for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or nests_deeper(value, MAX_SCHEMA_DEPTH):
        return None
    return value
