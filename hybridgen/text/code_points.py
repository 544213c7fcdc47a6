"""Sets of Unicode characters as ranges of code points, and their UTF-8 as ranges of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: (first, last) code points or bytes, both included; sorted, apart from each other.
Ranges = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
#: Halves of UTF-16 pairs: no text in UTF-8 has them.
FIRST_SURROGATE, LAST_SURROGATE = 0xD800, 0xDFFF
_LAST_OF_LENGTH = (0x7F, 0x7FF, 0xFFFF)
_BITS = 6  # of a code point in each byte after the first


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union of ``ranges``, in order, without surrogates."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(_without_surrogates(ranges)):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in ranges:
        below, above = min(last, FIRST_SURROGATE - 1), max(first, LAST_SURROGATE + 1)
        if first <= below:
            yield first, below
        if above <= last:
            yield above, last


def inverse(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Every other character."""
    gaps = []
    begin = 0
    for first, last in merged(ranges):
        gaps.append((begin, first - 1))
        begin = last + 1
    return merged([*gaps, (begin, MAX_CODE_POINT)])


def both_cases(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """``ranges`` with the upper and the lower case of each character, where that is one."""
    found = list(ranges)
    for first, last in tuple(found):
        for character in map(chr, range(first, last + 1)):
            found += [
                (ord(other), ord(other))
                for other in (character.lower(), character.upper())
                if len(other) == 1
            ]
    return merged(found)


def utf8_sequences(first: int, last: int) -> Iterator[Ranges]:
    """Sequences of byte ranges that together are the UTF-8 of the characters first … last.

    A range is cut wherever its characters change their length, and where one byte of theirs runs
    through part of its values while an earlier one changes. No surrogates.
    """
    for limit in _LAST_OF_LENGTH:
        if first <= limit < last:
            yield from utf8_sequences(first, limit)
            yield from utf8_sequences(limit + 1, last)
            return
    low, high = chr(first).encode(), chr(last).encode()
    for num_bits in range(_BITS, _BITS * len(low), _BITS):
        rest = (1 << num_bits) - 1
        if first >> num_bits == last >> num_bits:
            break
        if first & rest:
            yield from utf8_sequences(first, first | rest)
            yield from utf8_sequences((first | rest) + 1, last)
            return
        if last & rest != rest:
            yield from utf8_sequences(first, (last & ~rest) - 1)
            yield from utf8_sequences(last & ~rest, last)
            return
    yield tuple(zip(low, high, strict=True))
