"""The text of an answer → what its reader shall see and the calls in it.

However the text is cut into pieces, the same comes out: the whole answer is parsed by the code
that parses a stream. A mark that no call follows is text like any other. Nothing is lost but what
belongs to the format: marks, white space beside them, other keys of a call.
"""

from __future__ import annotations

from collections.abc import Collection

from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.call_reader import CallReader
from hybridgen.text.tool_calls.pieces import Piece, PieceSink
from hybridgen.text.tool_calls.text_feed import SPACES, Reading, TextFeed

_BETWEEN_CALLS = SPACES + ",;"


class CallParser:
    """Parses one answer.

    Args:
        format_: of the model.
        offered: names of the functions that the request offers. An answer that begins with the
            JSON of a call of one of them is a call without its mark; behind a mark any name is.
    """

    def __init__(self, format_: CallFormat, offered: Collection[str]) -> None:
        self._feed = TextFeed()
        self._sink = PieceSink()
        self._calls = CallReader(self._feed, self._sink, format_, offered)
        self._opener, self._closer = format_.opener, format_.closer
        self._is_closer_due = False
        self._reading = self._read()

    def push(self, text: str) -> list[Piece]:
        """The next piece of the answer; what is known now."""
        self._feed.push(text)
        return self._resume()

    def finish(self) -> list[Piece]:
        """The answer has ended; what was held back."""
        self._feed.is_complete = True
        return self._resume()

    def _resume(self) -> list[Piece]:
        next(self._reading, None)
        return self._sink.take()

    def _read(self) -> Reading[None]:
        yield from self._read_unmarked()
        while True:
            marks = [self._opener, self._closer] if self._is_closer_due else [self._opener]
            mark = yield from self._feed.pass_until(marks, self._sink.content)
            if not mark:
                self._sink.end()
                return
            self._feed.position += len(mark)
            if mark == self._opener:
                yield from self._read_marked()
            else:
                self._is_closer_due = False

    def _read_unmarked(self) -> Reading[None]:
        yield from self._feed.skip()
        if not (yield from self._read_calls(must_be_offered=True)):
            self._feed.position = 0

    def _read_marked(self) -> Reading[None]:
        start = self._feed.position
        yield from self._feed.skip()
        if not (yield from self._read_calls(must_be_offered=False)):
            self._feed.position = start
            self._sink.content(self._opener)

    def _read_calls(self, *, must_be_offered: bool) -> Reading[bool]:
        """One call or several, and what closes them; whether there was one."""
        feed = self._feed
        is_array = yield from feed.skip_mark("[")
        num_calls = 0
        while True:
            end = feed.position
            yield from feed.skip(_BETWEEN_CALLS if num_calls else SPACES)
            if not (yield from self._calls.read(must_be_offered=must_be_offered)):
                break
            num_calls += 1
        feed.position = end
        if not num_calls:
            return False
        if is_array:
            yield from self._skip_after_spaces("]")
        if self._closer:
            self._is_closer_due = not (yield from self._skip_after_spaces(self._closer))
        return True

    def _skip_after_spaces(self, mark: str) -> Reading[bool]:
        start = self._feed.position
        yield from self._feed.skip()
        if (yield from self._feed.skip_mark(mark)):
            return True
        self._feed.position = start
        return False
