"""The messages of a chat body → the conversation that the model's template is given."""

from __future__ import annotations

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage, ChatPrompt
from hybridgen.server.json_body import shown
from hybridgen.server.prompt_size import check_texts
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.unserved import NULL, refuse_asked

#: Role of a body → role that templates know: developer is the newer word for system.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class ContentPart(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A piece of a message. Other types than text bring keys that are not known here."""

    type: str
    text: str


class Message(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One turn, as clients send it; also as they send back an answer of ours, nulls included."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    """Tells participants of one role apart; templates are not given it."""
    refusal: msgspec.Raw = NULL
    annotations: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL
    tool_calls: msgspec.Raw = NULL
    tool_call_id: msgspec.Raw = NULL


#: Keys of a message that must be null or empty.
_UNSERVED = (
    "refusal",
    "annotations",
    "audio",
    "function_call",
    "tool_calls",
    "tool_call_id",
)
_EMPTY: tuple[object, ...] = ("", [])


def as_conversation(messages: list[Message], limits: RequestLimits) -> ChatPrompt:
    """The prompt that these messages make.

    Raises:
        InvalidRequest: none, too many, a role, a part or a key that is not served.
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
    check_texts((turn.content for turn in turns), "messages", limits)
    return ChatPrompt(turns)


def _turn(message: Message, place: str) -> ChatMessage:
    for key in _UNSERVED:
        refuse_asked(getattr(message, key), key, f"{place}.{key}", _EMPTY)
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            "a message has a role that is not served",
            param=f"{place}.role",
            value=shown(message.role),
            limit=", ".join(ROLES),
        )
    return ChatMessage(role, _text(message.content, f"{place}.content"))


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
