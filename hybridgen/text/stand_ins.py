"""Stand-ins: two characters in the place of a text, by which it is found again after rendering."""

from __future__ import annotations

#: The second character counts the texts. Private use (Unicode 23.5), so no letter, digit or white
#: space that a template could make something of.
_FIRST = 0xF0000


class StandIns:
    """Puts stand-ins for texts, and texts for stand-ins.

    Args:
        guard: the first character of each stand-in; it occurs in no text.
    """

    def __init__(self, guard: str) -> None:
        self._guard = guard
        self._texts: dict[str, str] = {}

    def put(self, text: str) -> str:
        """What stands for ``text``."""
        mark = chr(_FIRST + len(self._texts))
        self._texts[mark] = text
        return self._guard + mark

    def num_chars(self, marked: str) -> int:
        """Length of ``fill(marked)``, which a template may have made larger than memory."""
        return sum(map(len, self._pieces(marked)))

    def fill(self, marked: str) -> str:
        """``marked`` with every text in its place, and without guards."""
        return "".join(self._pieces(marked))

    def _pieces(self, marked: str) -> list[str]:
        if not self._texts:
            return [marked.replace(self._guard, "")]
        first, *others = marked.split(self._guard)
        pieces = [first]
        for other in others:
            text = self._texts.get(other[:1])
            pieces += [other] if text is None else [text, other[1:]]
        return pieces
