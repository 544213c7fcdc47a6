"""Reads one call. It counts as one as soon as its name and the start of its arguments are there.

Before that, anything unexpected means that it is none. After that its arguments are told as the
model writes them: as JSON where they are, and else up to the next mark of the format, because whom
they are for can judge them best. Other keys of a call (``type``, ``id``) are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.json_scanner import JsonScanner
from hybridgen.text.tool_calls.pieces import PieceSink
from hybridgen.text.tool_calls.text_feed import Reading, TextFeed
from hybridgen.tool import is_function_name

#: A call whose name comes late, or whose arguments are one JSON string, is held back whole; when
#: it grows longer than this it is taken for text.
MAX_HELD_CHARS = 16_384
_MAX_KEY_CHARS = 80
_MAX_NAME_CHARS = 400  # 64 characters, each of them an escape

_NAME_KEYS = ("name", "function")
_ARGUMENTS_KEYS = ("arguments", "parameters")
_SILENT_KEYS = ("type", "id")
_WORD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


class CallReader:
    """Tells ``sink`` what it finds in ``feed``."""

    def __init__(
        self, feed: TextFeed, sink: PieceSink, format_: CallFormat, offered: Collection[str]
    ) -> None:
        self._feed = feed
        self._sink = sink
        self._marks = [mark for mark in (format_.opener, format_.closer) if mark]
        self._takes_plain_name = format_.takes_plain_name
        self._offered = offered
        self._must_be_offered = False
        self._begin()

    def _begin(self) -> None:
        self._name: str | None = None
        self._held: str | None = None
        self._is_told = False

    def read(self, *, must_be_offered: bool = False) -> Reading[bool]:
        """One call from here.

        Args:
            must_be_offered: only functions that the request offers count.

        Returns:
            False, with the feed where it was, when there is none.
        """
        start = self._feed.position
        self._begin()
        self._must_be_offered = must_be_offered
        char = yield from self._feed.peek()
        if char == "{":
            self._feed.position += 1
            yield from self._read_object()
        elif self._takes_plain_name:
            yield from self._read_plain()
        if not self._is_told:
            self._feed.position = start
        return self._is_told

    # --- {"name": …, "arguments": …} ------------------------------------------------------------

    def _read_object(self) -> Reading[None]:
        feed = self._feed
        while True:
            yield from feed.skip()
            if (yield from feed.skip_mark("}")):
                self._tell_held()
                return
            key = yield from self._read_string(_MAX_KEY_CHARS)
            if key is None:
                return
            yield from feed.skip()
            if not (yield from feed.skip_mark(":")):
                return
            yield from feed.skip()
            if not (yield from self._read_value(key)):
                return
            yield from feed.skip()
            yield from feed.skip_mark(",")

    def _read_value(self, key: str) -> Reading[bool]:
        """The value of a key; whether the object goes on."""
        if self._is_told:
            return (yield from self._pass_value())
        if key in _NAME_KEYS and self._name is None:
            self._name = yield from self._read_string(_MAX_NAME_CHARS)
            return self._is_acceptable(self._name)
        if key in _ARGUMENTS_KEYS and self._held is None:
            if self._name is not None and (yield from self._feed.peek()) in ("{", "["):
                return (yield from self._tell_arguments(self._name))
            self._held = yield from self._hold_value(MAX_HELD_CHARS)
            if self._held is not None and self._name is not None:
                self._tell_held()
            return self._held is not None
        if key in _SILENT_KEYS:
            return (yield from self._hold_value(MAX_HELD_CHARS)) is not None
        return False

    def _is_acceptable(self, name: str | None) -> bool:
        if name is None or not is_function_name(name):
            return False
        return name in self._offered or not self._must_be_offered

    def _tell_held(self) -> None:
        """The call of an object that has ended, or whose arguments were held back."""
        if self._is_told or self._name is None:
            return
        self._is_told = True
        self._sink.call(self._name)
        self._sink.arguments(_unwrapped(self._held))

    # --- name{…} --------------------------------------------------------------------------------

    def _read_plain(self) -> Reading[None]:
        feed = self._feed
        name = yield from feed.take_all(_WORD, 64)
        if not self._is_acceptable(name):
            return
        if (yield from feed.skip_mark("[CALL_ID]")):
            yield from feed.take_all(_WORD, 64)
        yield from feed.skip_mark("[ARGS]")
        yield from feed.skip()
        if (yield from feed.peek()) == "{":
            yield from self._tell_arguments(name)

    # --- values ---------------------------------------------------------------------------------

    def _tell_arguments(self, name: str) -> Reading[bool]:
        """Tell the call and, as they arrive, its arguments; whether they were JSON."""
        self._is_told = True
        self._sink.call(name)
        feed, scanner = self._feed, JsonScanner()
        while True:
            start = feed.position
            feed.position = scanner.feed(feed.text, start)
            self._sink.arguments(feed.text[start : feed.position])
            feed.forget()
            if scanner.is_broken:
                yield from feed.pass_until(self._marks, self._sink.arguments)
            if scanner.is_broken or scanner.is_complete or feed.is_complete:
                return scanner.is_complete
            yield

    def _pass_value(self) -> Reading[bool]:
        """Pass over a value; whether it was JSON."""
        feed, scanner = self._feed, JsonScanner()
        while True:
            feed.position = scanner.feed(feed.text, feed.position)
            feed.forget()
            if scanner.is_broken or scanner.is_complete or feed.is_complete:
                return scanner.is_complete
            yield

    def _hold_value(self, max_chars: int) -> Reading[str | None]:
        """A whole value; None when it is no JSON, ends with the text, or is too long."""
        feed, scanner = self._feed, JsonScanner()
        start = feed.position
        while True:
            feed.position = scanner.feed(feed.text, feed.position)
            if feed.position - start > max_chars:
                return None
            if scanner.is_complete:
                return feed.text[start : feed.position]
            if scanner.is_broken or feed.is_complete:
                return None
            yield

    def _read_string(self, max_chars: int) -> Reading[str | None]:
        if (yield from self._feed.peek()) != '"':
            return None
        literal = yield from self._hold_value(max_chars)
        return None if literal is None else _decoded(literal)


def _unwrapped(arguments: str | None) -> str:
    """Arguments as an object: none at all is an empty one, and some models quote theirs."""
    if arguments is None or arguments == "null":
        return "{}"
    text = _decoded(arguments) if arguments.startswith('"') else None
    return arguments if text is None else text


def _decoded(literal: str) -> str | None:
    """The text of a JSON string; None when it is damaged, or no text that can be sent."""
    try:
        text = json.loads(literal, strict=False)
        text.encode()
    except ValueError:  # UnicodeEncodeError, for half a surrogate pair, is one too
        return None
    return text if isinstance(text, str) else None
