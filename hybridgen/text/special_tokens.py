"""Special tokens: the texts that stand for control ids, and how text is cut at them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class SpecialToken(NamedTuple):
    """A control token; the strip flags eat the white space beside it."""

    text: str
    token_id: int
    strips_left: bool = False
    strips_right: bool = False


class SpecialTokens:
    """All special tokens of a vocabulary; the longest one wins where several begin."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._by_text = {token.text: token for token in tokens if token.text}
        self._patterns: dict[str, re.Pattern[str]] = {}

    @property
    def texts(self) -> frozenset[str]:
        """The texts of all special tokens."""
        return frozenset(self._by_text)

    def split(self, text: str, guard: str = "") -> Iterator[int | str]:
        """Cut ``text`` into special ids and the runs of plain text between them, in order.

        A special token is not recognized where it has the ``guard`` character inside or right
        before it; the guards themselves are left out of the runs.
        """
        start = 0
        strips_right = False
        for match in self._pattern(guard).finditer(text) if self._by_text else ():
            special = self._by_text[match.group()]
            run = _trimmed(text[start : match.start()], guard, strips_right, special.strips_left)
            if run:
                yield run
            yield special.token_id
            start, strips_right = match.end(), special.strips_right
        run = _trimmed(text[start:], guard, strips_right, False)
        if run:
            yield run

    def _pattern(self, guard: str) -> re.Pattern[str]:
        pattern = self._patterns.get(guard)
        if pattern is None:
            longest_first = sorted(self._by_text, key=len, reverse=True)
            texts = "|".join(re.escape(text) for text in longest_first)
            not_guarded = f"(?<!{re.escape(guard)})" if guard else ""
            pattern = self._patterns[guard] = re.compile(f"{not_guarded}(?:{texts})")
        return pattern


def _trimmed(run: str, guard: str, strips_left: bool, strips_right: bool) -> str:
    if guard:
        run = run.replace(guard, "")
    if strips_left:
        run = run.lstrip()
    return run.rstrip() if strips_right else run
