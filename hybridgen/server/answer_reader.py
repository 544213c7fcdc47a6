"""What the text of a chat's choice consists of: reasoning, what its reader sees, calls of tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from hybridgen.server.generation import Generation
from hybridgen.server.tool_answer import CallDelta, Delta, NewId, ToolAnswer, new_call_id
from hybridgen.text.reasoning_parser import Reasoning, ReasoningParser
from hybridgen.text.tool_calls.pieces import Content
from hybridgen.tool import FunctionCall, ToolCall

#: A whole answer is read in slices of this size, a few milliseconds each.
SLICE_CHARS = 1024


class Reader(Protocol):
    """Reads one choice as it is made."""

    def push(self, text: str) -> list[Delta]:
        """The next piece of the text."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back to the end."""
        ...

    def finish_reason(self, reason: str) -> str:
        """Why the answer ended, the model's end being for ``reason``."""
        ...


class ReadAnswer(NamedTuple):
    """A whole choice."""

    content: str | None
    """None where there is nothing but calls or reasoning."""
    calls: list[ToolCall]
    finish_reason: str
    reasoning: str | None = None


class ReasoningAnswer:
    """Reads a choice that may begin with reasoning; what follows goes to ``tools``."""

    def __init__(self, parser: ReasoningParser, tools: ToolAnswer | None) -> None:
        self._parser = parser
        self._tools = tools

    def push(self, text: str) -> list[Delta]:
        """The next piece of the text."""
        return self._deltas(self._parser.push(text))

    def finish(self) -> list[Delta]:
        """What was held back to the end."""
        deltas = self._deltas(self._parser.finish())
        return deltas + (self._tools.finish() if self._tools else [])

    def finish_reason(self, reason: str) -> str:
        """For calls, if there are any and it was not cut off."""
        return self._tools.finish_reason(reason) if self._tools else reason

    def _deltas(self, pieces: list[Reasoning | Content]) -> list[Delta]:
        deltas: list[Delta] = []
        for piece in pieces:
            if isinstance(piece, Reasoning):
                deltas.append(Delta(reasoning_content=piece.text))
            elif self._tools is not None:
                deltas += self._tools.push(piece.text)
            else:
                deltas.append(Delta(content=piece.text))
        return deltas


def answer_reader(generation: Generation, new_id: NewId = new_call_id) -> Reader | None:
    """For one choice; None where its text is all there is to it."""
    tools = None
    if generation.tools is not None:
        is_held = generation.params.grammar is not None
        tools = ToolAnswer(generation.tools, is_held=is_held, new_id=new_id)
    if generation.reasoning is None:
        return tools
    return ReasoningAnswer(ReasoningParser(generation.reasoning), tools)


async def read_answer(reader: Reader, text: str, reason: str) -> ReadAnswer:
    """A whole text. Others have their turn between its slices.

    Args:
        reader: new, of the choice.
        text: all of it.
        reason: why the model ended.
    """
    contents: list[str] = []
    thoughts: list[str] = []
    begun: list[CallDelta] = []
    arguments: dict[int, list[str]] = {}
    async for delta in _in_slices(reader, text):
        contents.append(delta.content or "")
        thoughts.append(delta.reasoning_content or "")
        for call in delta.tool_calls or ():
            arguments.setdefault(call.index, []).append(call.function.arguments)
            if call.id is not None:
                begun.append(call)
    calls = [
        ToolCall(
            call.id or "", FunctionCall(call.function.name or "", "".join(arguments[call.index]))
        )
        for call in begun
    ]
    content, reasoning = "".join(contents), "".join(thoughts) or None
    has_other = bool(calls or reasoning)
    reason = reader.finish_reason(reason)
    return ReadAnswer(None if has_other and not content else content, calls, reason, reasoning)


async def _in_slices(reader: Reader, text: str) -> AsyncIterator[Delta]:
    for start in range(0, len(text), SLICE_CHARS):
        for delta in reader.push(text[start : start + SLICE_CHARS]):
            yield delta
        await asyncio.sleep(0)
    for delta in reader.finish():
        yield delta
