"""Special tokens: the texts that stand for control ids, and how text is cut at them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from hybridgen.errors import BadModelFile

#: ``SpecialGuard`` keeps all beginnings of all special tokens. Gemma's 6,242 come to a million.
MAX_SQUARED_CHARS = 2**25


class SpecialToken(NamedTuple):
    """A control token; the strip flags eat the white space beside it."""

    text: str
    token_id: int
    strips_left: bool = False
    strips_right: bool = False


class SpecialTokens:
    """All special tokens of a vocabulary; the longest one wins where several begin.

    Raises:
        BadModelFile: they are impossibly long.
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._by_text = {token.text: token for token in tokens if token.text}
        num_chars = sum(len(text) ** 2 for text in self._by_text)
        if num_chars > MAX_SQUARED_CHARS:
            raise BadModelFile(
                "the special tokens are impossibly long",
                field="added tokens (squares of their lengths)",
                value=num_chars,
                limit=MAX_SQUARED_CHARS,
                remedy="Fetch or convert the model again",
            )
        longest_first = sorted(self._by_text, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @property
    def texts(self) -> frozenset[str]:
        """The texts of all special tokens."""
        return frozenset(self._by_text)

    def split(
        self, text: str, guard: str = "", unmarked: Callable[[str], str] | None = None
    ) -> Iterator[int | str]:
        """Cut ``text`` into special ids and the runs of plain text between them, in order.

        A special token is not recognized where it has the ``guard`` character inside or right
        before it; ``unmarked`` makes of each run what it is without marks: unless given,
        leaves the guards out.
        """
        unmarked = unmarked or (lambda run: run.replace(guard, ""))
        start = 0
        strips_right = False
        position = 0
        while match := self._pattern.search(text, position):
            begin = match.start()
            if guard and text.startswith(guard, begin - 1, begin):
                position = begin + 1
                continue
            special = self._by_text[match.group()]
            run = _trimmed(unmarked(text[start:begin]), strips_right, special.strips_left)
            if run:
                yield run
            yield special.token_id
            start = position = match.end()
            strips_right = special.strips_right
        run = _trimmed(unmarked(text[start:]), strips_right, False)
        if run:
            yield run


def _trimmed(run: str, strips_left: bool, strips_right: bool) -> str:
    if strips_left:
        run = run.lstrip()
    return run.rstrip() if strips_right else run
