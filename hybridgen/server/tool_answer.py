"""Calls of tools in an answer, as they are made."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import Literal

import msgspec

from hybridgen.server.tool_use import ToolUse
from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.parser import CallParser
from hybridgen.text.tool_calls.pieces import Arguments, CallBegun, Content, Piece
from hybridgen.tool import MAX_CALLS

_ID_CHARS = string.ascii_letters + string.digits
NewId = Callable[[CallFormat], str]


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name comes once, the arguments in pieces."""

    arguments: str
    name: str | None = None


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the call ``index``; id and type come with the first."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: Literal["function"] | None = None


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an event adds to the message: reasoning, text, or a piece of a call."""

    reasoning_content: str | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


def new_call_id(format_: CallFormat) -> str:
    """An id that no other call has, in the form that the model's template takes back."""
    chars = (secrets.choice(_ID_CHARS) for _ in range(format_.num_id_chars))
    return format_.id_prefix + "".join(chars)


class ToolAnswer:
    """Reads one choice.

    Args:
        use: of the request.
        is_held: the answer keeps to a grammar, in which calls have their marks.
        new_id: makes the ids of calls.

    Attributes:
        num_calls: calls that have begun. The first is passed on, with parallel calls the first
            ``MAX_CALLS``.
    """

    def __init__(self, use: ToolUse, *, is_held: bool = False, new_id: NewId = new_call_id) -> None:
        self.num_calls = 0
        self._format = use.support.format
        is_marked = is_held and not self._format.is_opener_rare
        self._parser = CallParser(self._format, () if is_marked else use.names)
        self._is_forced = use.is_forced
        # No more than a conversation takes back.
        self._max_calls = MAX_CALLS if use.is_parallel else 1
        self._new_id = new_id

    def push(self, text: str) -> list[Delta]:
        """The next piece of the text."""
        return self._deltas(self._parser.push(text))

    def finish(self) -> list[Delta]:
        """What was held back to the end."""
        return self._deltas(self._parser.finish())

    def finish_reason(self, reason: str) -> str:
        """Why the answer ended: for its calls, if it has any and was not cut off."""
        return "tool_calls" if self.num_calls and reason == "stop" else reason

    def _deltas(self, pieces: list[Piece]) -> list[Delta]:
        return [delta for piece in pieces if (delta := self._delta(piece)) is not None]

    def _delta(self, piece: Piece) -> Delta | None:
        if isinstance(piece, Content):
            # Only calls were allowed: this is one that was cut off before it had a name.
            return None if self._is_forced else Delta(content=piece.text)
        self.num_calls += isinstance(piece, CallBegun)
        if self.num_calls > self._max_calls:
            return None
        index = self.num_calls - 1
        if isinstance(piece, Arguments):
            call = CallDelta(index, FunctionDelta(piece.text))
        else:
            begun = FunctionDelta("", piece.name)
            call = CallDelta(index, begun, self._new_id(self._format), "function")
        return Delta(tool_calls=[call])
