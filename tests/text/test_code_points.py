from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.text.code_points import MAX_CODE_POINT, both_cases, inverse, merged, utf8_sequences

EDGES = (0x0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)
POINTS = st.one_of(st.sampled_from(EDGES), st.integers(0, MAX_CODE_POINT))
RANGES = st.lists(st.tuples(POINTS, POINTS).map(lambda pair: (min(pair), max(pair))), max_size=4)


def holds(ranges: object, point: int) -> bool:
    return any(first <= point <= last for first, last in ranges)  # type: ignore[attr-defined]


@given(RANGES, POINTS)
def test_merged_ranges_hold_the_same_characters_and_no_surrogate(
    ranges: list[tuple[int, int]], point: int
) -> None:
    union = merged(ranges)
    is_character = not 0xD800 <= point <= 0xDFFF
    assert holds(union, point) == (is_character and holds(ranges, point))
    assert holds(inverse(ranges), point) == (is_character and not holds(ranges, point))
    assert all(a[1] + 1 < b[0] for a, b in pairwise(union))


@given(RANGES, POINTS)
def test_byte_ranges_spell_exactly_the_characters_of_a_range(
    ranges: list[tuple[int, int]], point: int
) -> None:
    spelled = [one for pair in merged(ranges) for one in utf8_sequences(*pair)]
    edges = [e for pair in merged(ranges) for edge in pair for e in (edge - 1, edge, edge + 1)]
    for code in (point, *edges):
        if not 0 <= code <= MAX_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            continue
        text = chr(code).encode()
        found = [
            sequence
            for sequence in spelled
            if len(sequence) == len(text)
            and all(low <= byte <= high for byte, (low, high) in zip(text, sequence, strict=True))
        ]
        assert len(found) == holds(ranges, code)


def test_every_combination_of_the_byte_ranges_is_a_character() -> None:
    total = 0
    for pair in merged([(0, MAX_CODE_POINT)]):
        for sequence in utf8_sequences(*pair):
            for ends in product(*sequence):
                assert len(bytes(ends).decode()) == 1
            count = 1
            for low, high in sequence:
                count *= high - low + 1
            total += count
    assert total == MAX_CODE_POINT + 1 - 0x800


def test_both_cases_of_letters_are_found() -> None:
    for letter, other in ("aA", "яЯ", "Σσ"):
        assert both_cases([(ord(letter), ord(letter))]) == merged(
            [(ord(letter), ord(letter)), (ord(other), ord(other))]
        )
    assert both_cases([(0xDF, 0xDF)]) == ((0xDF, 0xDF),)  # ß has no upper case of one character
