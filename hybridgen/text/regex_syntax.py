r"""Regular expressions as texts → trees: the subset that can stop a text.

Characters, ``.``, sets like ``[^a-z\d]``, groups, ``|``, ``* + ? {m} {m,} {m,n}`` (a ``?`` behind
one is of no account: the earliest end counts anyway), escapes ``\d \w \s`` (ASCII, as in RE2 and
JavaScript) and ``\D \W \S``, ``\n \r \t \f \v \xHH \uHHHH``, and ``(?i)`` or ``(?s)`` in front.
Whatever else means something to some engine is refused by its name, never read as something else.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from hybridgen.errors import InvalidRequest
from hybridgen.text.code_points import MAX_CODE_POINT, Ranges, both_cases, inverse, merged

MAX_NESTING = 32
MAX_REPEATS = 1000
#: Characters of one range whose other case is looked up.
MAX_CASED_RANGE = 512


class Characters(NamedTuple):
    """One character of a set."""

    ranges: Ranges


class Series(NamedTuple):
    """One part after the other; none is the empty text."""

    parts: tuple[Node, ...]


class Choice(NamedTuple):
    """Any of the options."""

    options: tuple[Node, ...]


class Repeat(NamedTuple):
    """A part, ``least`` to ``most`` times; without ``most``, any number from ``least`` on."""

    part: Node
    least: int
    most: int | None


Node = Characters | Series | Choice | Repeat

_DIGITS = ((0x30, 0x39),)
_CLASSES = {
    "d": _DIGITS,
    "w": (*_DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20)),
}
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
_HEX_DIGITS = {"x": 2, "u": 4}
_SIMPLE_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_FLAGS = {"(?i)": "i", "(?s)": "s", "(?is)": "is", "(?si)": "si"}
#: Of the pattern, in an error.
_SHOWN_CHARS = 16
_REFUSED_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?>": "an atomic group",
    "(?#": "a comment",
    "(?P<": "a named group",
    "(?<": "a named group",
    "(?P": "a reference to a group",
    "(?(": "a condition",
}
_REFUSED_ESCAPES = {
    **dict.fromkeys("123456789k", "a back-reference"),
    **dict.fromkeys("AbBGzZ", "an anchor"),
    **dict.fromkeys("pP", "a Unicode property"),
}


def refuse(
    what: str, *, remedy: str, value: str | None = None, limit: int | str | None = None
) -> NoReturn:
    """Raise what every refusal of a pattern is."""
    message = f"stop_regex: {what}"
    raise InvalidRequest(message, param="stop_regex", value=value, limit=limit, remedy=remedy)


def parse_regex(pattern: str) -> Node:
    """The tree of ``pattern``.

    Raises:
        InvalidRequest: it is malformed, or outside the subset; names what and where.
    """
    for prefix, flags in _FLAGS.items():
        if pattern.startswith(prefix):
            return _Parser(pattern, len(prefix), flags).parse()
    return _Parser(pattern, 0, "").parse()


class _Parser:
    """Reads from left to right; ``_at`` is the next character."""

    def __init__(self, pattern: str, start: int, flags: str) -> None:
        self._pattern = pattern
        self._at = start
        self._depth = 0
        self._has_no_case = "i" in flags
        newline: Ranges = () if "s" in flags else ((0x0A, 0x0A),)
        self._any = Characters(inverse(newline))

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._pattern):
            self._refuse("a ) that closes no group", remedy=r"Write \) for the character")
        return node

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        if self._peek() not in ("*", "+", "?", "{"):
            return part
        least, most = self._bounds()
        self._take("?")
        if self._peek() in ("*", "+", "?", "{"):
            self._refuse("a repetition of a repetition", remedy="Put a group around the inner one")
        return Repeat(part, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        if self._peek() != "{":
            return _SIMPLE_REPEATS[self._next()]
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at + 1 : end].partition(",")
        if end < 0 or not _is_number(low) or (high and not _is_number(high)):
            self._refuse("a { that begins no {m}, {m,} or {m,n}", remedy=r"Write \{")
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
            self._refuse("a repetition out of range", limit=f"m ≤ n ≤ {MAX_REPEATS}")
        self._at = end + 1
        return least, most

    def _atom(self) -> Node:
        match self._peek():
            case "(":
                return self._group()
            case "[":
                return Characters(self._set())
            case ".":
                self._at += 1
                return self._any
            case "\\":
                return Characters(self._cased(self._escape()))
            case "^" | "$" as anchor:
                self._refuse("an anchor", remedy=rf"Leave it out, or write \{anchor}")
            case "*" | "+" | "?" | "{" as sign:
                self._refuse("nothing to repeat", remedy=rf"Write \{sign} for the character")
        code = ord(self._next())
        return Characters(self._cased([(code, code)]))

    def _group(self) -> Node:
        for prefix, name in _REFUSED_GROUPS.items():
            if self._pattern.startswith(prefix, self._at):
                self._refuse(name)
        if not self._take("(?:"):
            self._at += 1
            if self._peek() == "?":
                self._at -= 1
                self._refuse("flags other than (?i), (?s) or (?is) in front")
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._refuse("groups too deep", limit=MAX_NESTING, remedy="Nest fewer groups")
        node = self._choice()
        if not self._take(")"):
            self._refuse("a group that is not closed", remedy=r"Add ), or write \( for a character")
        self._depth -= 1
        return node

    # --- characters -----------------------------------------------------------------------------

    def _set(self) -> Ranges:
        start = self._at
        self._at += 1
        is_negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            if self._peek() == "":
                self._at = start
                self._refuse("a set that is not closed", remedy=r"Add ], or write \[")
            found += self._set_range()
        ranges = self._cased(found) if found else ()
        ranges = inverse(ranges) if is_negated else ranges
        if not found or not ranges:
            self._at = start
            self._refuse("a set without characters", remedy=r"Write \] for a ] in it")
        return ranges

    def _set_range(self) -> Iterable[tuple[int, int]]:
        """One item of a set: a character, an escape, or a range of characters."""
        at = self._at
        if self._pattern.startswith("[:", at):
            self._refuse("a POSIX class", remedy=r"Write it as ranges, or \[ for the character")
        first = self._set_item()
        if self._peek() != "-" or self._pattern.startswith("-]", self._at):
            return first
        self._at += 1
        last = self._set_item() if self._peek() else ()
        if len(first) != 1 or len(last) != 1 or not first[0][0] == first[0][1] <= last[0][1]:
            self._at = at
            self._refuse("a range that is none", remedy=r"Write \- for the character")
        if self._has_no_case and last[0][1] - first[0][0] >= MAX_CASED_RANGE:
            self._at = at
            self._refuse("a range too large for (?i)", limit=MAX_CASED_RANGE)
        return [(first[0][0], last[0][1])]

    def _set_item(self) -> Ranges:
        if self._peek() == "\\":
            return self._escape()
        code = ord(self._next())
        return ((code, code),)

    def _escape(self) -> Ranges:
        at = self._at
        self._at += 1
        letter = self._next() if self._peek() else ""
        if letter.lower() in _CLASSES:
            ranges = merged(_CLASSES[letter.lower()])
            return ranges if letter.islower() else inverse(ranges)
        if letter in _CONTROLS:
            code = _CONTROLS[letter]
        elif letter in _HEX_DIGITS:
            code = self._hexadecimal(_HEX_DIGITS[letter])
        elif letter and not (letter.isascii() and letter.isalnum()):
            code = ord(letter)
        else:
            self._at = at
            self._refuse(_REFUSED_ESCAPES.get(letter, "an escape of no meaning"))
        return ((code, code),)

    def _hexadecimal(self, num_digits: int) -> int:
        digits = self._pattern[self._at : self._at + num_digits]
        is_complete = len(digits) == num_digits and not set(digits) - set(string.hexdigits)
        code = int(digits, 16) if is_complete else MAX_CODE_POINT + 1
        if not merged([(code, code)]) or code > MAX_CODE_POINT:
            self._at -= 2
            self._refuse("an escape of no character", limit=f"{num_digits} hexadecimal digits")
        self._at += num_digits
        return code

    def _cased(self, ranges: Iterable[tuple[int, int]]) -> Ranges:
        """With the other case where case is of no account."""
        ranges = merged(ranges)
        if not self._has_no_case:
            return ranges
        small = [one for one in ranges if one[1] - one[0] < MAX_CASED_RANGE]
        return merged([*ranges, *both_cases(small)])

    # --- the text -------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _refuse(
        self, what: str, *, limit: int | str | None = None, remedy: str = "Leave it out"
    ) -> NoReturn:
        shown = ascii(self._pattern[self._at : self._at + _SHOWN_CHARS])
        refuse(f"{what} at character {self._at}", value=shown, limit=limit, remedy=remedy)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4
