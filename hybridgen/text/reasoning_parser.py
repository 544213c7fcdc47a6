"""The text of an answer → its reasoning and the rest, the same however it is cut into pieces.

Marks, and white space beside them, belong to the format and are left out. An answer that does not
begin with reasoning is passed on as it is.
"""

from __future__ import annotations

from typing import NamedTuple

from hybridgen.text.reasoning import ReasoningFormat
from hybridgen.text.tool_calls.pieces import Content
from hybridgen.text.tool_calls.text_feed import SPACES, Reading, TextFeed


class Reasoning(NamedTuple):
    """More of what the model thinks."""

    text: str


class ReasoningParser:
    """Parses one answer.

    Args:
        format_: of the model.
    """

    def __init__(self, format_: ReasoningFormat) -> None:
        self._format = format_
        self._feed = TextFeed()
        self._pieces: list[Reasoning | Content] = []
        self._spaces: list[str] = []  # nothing but white space; it counts if reasoning goes on
        self._reading = self._read()

    def push(self, text: str) -> list[Reasoning | Content]:
        """The next piece of the answer; what is known now."""
        self._feed.push(text)
        return self._resume()

    def finish(self) -> list[Reasoning | Content]:
        """The answer has ended; what was held back."""
        self._feed.is_complete = True
        return self._resume()

    def _resume(self) -> list[Reasoning | Content]:
        next(self._reading, None)
        pieces, self._pieces = self._pieces, []
        return pieces

    def _read(self) -> Reading[None]:
        feed, format_ = self._feed, self._format
        yield from feed.skip()
        is_open = yield from feed.skip_mark(format_.opener)
        if is_open or format_.is_always_open:
            yield from feed.skip()
            closer = yield from feed.pass_until([format_.closer], self._reason)
            feed.position += len(closer)
            yield from feed.skip()
        else:
            feed.position = 0
        yield from feed.pass_until([], self._tell)

    def _reason(self, text: str) -> None:
        core = text.rstrip(SPACES)
        if core:
            self._pieces.append(Reasoning("".join([*self._spaces, core])))
            self._spaces = []
        if len(core) < len(text):
            self._spaces.append(text[len(core) :])

    def _tell(self, text: str) -> None:
        if text:
            self._pieces.append(Content(text))
