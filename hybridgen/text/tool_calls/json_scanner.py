"""Where a JSON value ends, in text that arrives in pieces."""

from __future__ import annotations

import re

_STRING = re.compile(r'[^"\\]*')
_SCALAR = re.compile(r"[A-Za-z0-9+.\-]*")
_BETWEEN = re.compile(r"[\s,:A-Za-z0-9+.\-]*")
_PARTNERS = {"}": "{", "]": "["}


class JsonScanner:
    """Follows strings and brackets only: what stands in a value is for its reader to judge.

    Attributes:
        is_complete: the value has ended.
        is_broken: what came cannot go on as JSON; the text up to there has been taken.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.is_broken = False
        self._open: list[str] = []
        self._is_in_string = False
        self._is_escaped = False
        self._is_in_scalar = False

    def feed(self, text: str, position: int) -> int:
        """Take what belongs to the value; where in ``text`` that ends."""
        while position < len(text) and not (self.is_complete or self.is_broken):
            if self._is_in_string:
                position = self._take_string(text, position)
            elif self._is_in_scalar:
                position = self._take_scalar(text, position)
            else:
                position = self._take_mark(text, position)
        return position

    def _take_string(self, text: str, position: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return position + 1
        end = _end(_STRING, text, position)
        if end == len(text):
            return end
        if text[end] == "\\":
            self._is_escaped = True
        else:
            self._is_in_string = False
            self.is_complete = not self._open
        return end + 1

    def _take_scalar(self, text: str, position: int) -> int:
        end = _end(_SCALAR, text, position)
        self.is_complete = end < len(text)
        return end

    def _take_mark(self, text: str, position: int) -> int:
        if self._open and (end := _end(_BETWEEN, text, position)) > position:
            return end
        char = text[position]
        if char == '"':
            self._is_in_string = True
        elif char in "{[":
            self._open.append(char)
        elif char in _PARTNERS and self._open and self._open[-1] == _PARTNERS[char]:
            self._open.pop()
            self.is_complete = not self._open
        elif not self._open and _SCALAR.fullmatch(char):
            self._is_in_scalar = True
            return position
        else:
            self.is_broken = True
            return position
        return position + 1


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return position if found is None else found.end()
