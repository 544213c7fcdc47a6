"""How much a chat template may make: single values, and all of one rendering together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MAX_TEXT_CHARS = 4 * 2**20
MAX_ITEMS = 2**17
MAX_INT_BITS = 256
MAX_DEPTH = 64
#: Characters of all texts that one rendering may make on its way. Texts that are kept alive are
#: among them, so this bounds the memory: 4 bytes for each at worst.
MAX_TOTAL_CHARS = 64 * 2**20
_ITEM_CHARS = 8  # an item of a list costs as much as this many characters


class SizeExceeded(Exception):
    """A template asked for more than any prompt could need."""


class SizeBudget:
    """Checks sizes before values are made; one call into C cannot be interrupted."""

    def __init__(self) -> None:
        self._num_left = MAX_TOTAL_CHARS

    def reset(self) -> None:
        """A new rendering begins."""
        self._num_left = MAX_TOTAL_CHARS

    def take_text(self, num_chars: int) -> None:
        """A text of ``num_chars`` is about to be made."""
        if num_chars > MAX_TEXT_CHARS:
            raise SizeExceeded(f"a text of {num_chars} characters")
        self._take(num_chars)

    def take_items(self, num_items: int) -> None:
        """A list of ``num_items`` is about to be made."""
        if num_items > MAX_ITEMS:
            raise SizeExceeded(f"a list of {num_items} items")
        self._take(num_items * _ITEM_CHARS)

    def take_like(self, value: Any, count: int) -> None:
        """A value of the kind of ``value``, ``count`` long, is about to be made."""
        if isinstance(value, str):
            self.take_text(count)
        else:
            self.take_items(count)

    def take_shown(self, value: Any) -> None:
        """``value`` is about to be turned into text. Parts that it shares count each time."""
        if not isinstance(value, int | float | None):
            self.take_text(MAX_TEXT_CHARS - _weigh(value, MAX_TEXT_CHARS, 0))

    def join(self, texts: Iterable[str]) -> str:
        """``"".join``; Jinja ends macros and set blocks with it."""
        parts = list(texts)
        self.take_text(sum(map(len, parts)))
        return "".join(parts)

    def _take(self, num_chars: int) -> None:
        self._num_left -= num_chars
        if self._num_left < 0:
            raise SizeExceeded(f"more than {MAX_TOTAL_CHARS} characters in all")


def check_bits(num_bits: int) -> None:
    """An integer of ``num_bits`` is about to be made."""
    if num_bits > MAX_INT_BITS:
        raise SizeExceeded(f"an integer of {num_bits} bits")


def _weigh(value: Any, budget: int, depth: int) -> int:
    """What is left of ``budget`` after the text of ``value``; raises when nothing is."""
    if isinstance(value, str):
        budget -= len(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            budget = _weigh(item, _weigh(key, budget, depth + 1), depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            budget = _weigh(item, budget, depth + 1)
    budget -= 2  # brackets, separators, digits: enough to bound the work
    if budget < 0 or depth > MAX_DEPTH:
        raise SizeExceeded(f"a value that shows as more than {MAX_TEXT_CHARS} characters")
    return budget
