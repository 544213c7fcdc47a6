"""The messages of a chat body → the conversation that the model's template is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage, ChatPrompt
from hybridgen.server.json_body import shown
from hybridgen.server.prompt_size import check_texts
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.unserved import NULL, refuse_asked
from hybridgen.text.conversation import texts_of
from hybridgen.text.template_kwargs import check_template_kwargs
from hybridgen.tool import MAX_CALLS, CallId, Tool, ToolCall

#: Role of a body → role that templates know: developer is the newer word for system.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
#: OpenAI's bound.
MAX_NAME_CHARS = 64


class ContentPart(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A piece of a message. Other types than text bring keys that are not known here."""

    type: str
    text: str


class Message(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One turn, as clients send it; also as they send back an answer of ours, nulls included."""

    role: str
    content: str | list[ContentPart] | None = None
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] | None = None
    """Tells participants of one role apart, where the model's template shows it."""
    tool_calls: Annotated[list[ToolCall], msgspec.Meta(max_length=MAX_CALLS)] | None = None
    """What the assistant asked for."""
    tool_call_id: CallId | None = None
    """The call whose result a message of role tool brings."""
    reasoning_content: str | None = None
    """What the assistant thought, as it stood in an answer; most templates leave it out."""
    refusal: msgspec.Raw = NULL
    annotations: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL


#: Keys of a message that must be null or empty.
_UNSERVED = (
    "refusal",
    "annotations",
    "audio",
    "function_call",
)
_EMPTY: tuple[object, ...] = ("", [])


def as_conversation(
    messages: list[Message],
    limits: RequestLimits,
    tools: Sequence[Tool] = (),
    template_kwargs: dict[str, Any] | None = None,
) -> ChatPrompt:
    """The prompt that these messages make, and the tools that may be called.

    Raises:
        InvalidRequest: none, too many, a role, a part or a key that is not served; variables
            that no template can be given.
        ContextLengthExceeded: more text than the context can hold.
    """
    if not 0 < len(messages) <= limits.max_messages:
        raise InvalidRequest(
            "a conversation needs messages, and not too many",
            param="messages",
            value=len(messages),
            limit=f"[1, {limits.max_messages}]",
            remedy="Send at least the user's message",
        )
    turns = [_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]
    check_template_kwargs(template_kwargs or {})
    prompt = ChatPrompt(turns, [*tools], template_kwargs or {})
    check_texts(texts_of(prompt), "messages", limits)
    return prompt


def _turn(message: Message, place: str) -> ChatMessage:
    for key in _UNSERVED:
        value = getattr(message, key)
        if value is not NULL:
            refuse_asked(value, key, f"{place}.{key}", _EMPTY)
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            "a message has a role that is not served",
            param=f"{place}.role",
            value=shown(message.role),
            limit=", ".join(ROLES),
        )
    _check_roles_keys(message, place)
    calls = message.tool_calls or []
    content = "" if calls and message.content is None else message.content
    text = _text(content, f"{place}.content")
    return ChatMessage(
        role, text, message.name, calls, message.tool_call_id, message.reasoning_content
    )


def _check_roles_keys(message: Message, place: str) -> None:
    """Calls and reasoning are the assistant's, results are for one of them."""
    if message.reasoning_content is not None and message.role != "assistant":
        raise InvalidRequest(
            "only the assistant reasons",
            param=f"{place}.reasoning_content",
            value=shown(message.role),
            limit="role assistant",
        )
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(
            "only the assistant calls tools",
            param=f"{place}.tool_calls",
            value=shown(message.role),
            limit="role assistant",
        )
    if (message.role == "tool") == (message.tool_call_id is None):
        raise InvalidRequest(
            "a message of role tool, and no other, says which call it answers",
            param=f"{place}.tool_call_id",
            value=shown(message.role),
            remedy="Give the result of a tool the role tool and the id of its call",
        )


def _text(content: str | list[ContentPart] | None, place: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise InvalidRequest(
            "a message has no content", param=place, remedy="Give it a text, which may be empty"
        )
    for index, part in enumerate(content):
        if part.type != "text":
            raise InvalidRequest(
                "a message has a part that is no text",
                param=f"{place}[{index}].type",
                value=shown(part.type),
                limit="text",
                remedy="This model reads text only",
            )
    return "".join(part.text for part in content)
