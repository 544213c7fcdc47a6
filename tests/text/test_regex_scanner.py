from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybridgen.errors import InvalidRequest
from hybridgen.text.regex_automaton import MAX_BEGINNINGS, regex_automaton
from hybridgen.text.regex_scanner import RegexScanner
from tests.text.test_regex_automaton import PATTERNS, TEXTS
from tests.text.test_stops import chunked

CUTS = st.lists(st.integers(0, 40), max_size=8)


def scanner_of(pattern: str) -> RegexScanner:
    try:
        return RegexScanner(regex_automaton(pattern))
    except InvalidRequest:
        assume(False)  # its only argument
        raise


def first_match(pattern: str, text: str) -> tuple[int, int] | None:
    """(begin, end) in characters by the definition: ends first, then begins earliest."""
    whole = re.compile(pattern, re.ASCII)
    for end in range(len(text) + 1):
        for begin in range(end):
            if whole.fullmatch(text[begin:end]):
                return begin, end
    return None


@given(PATTERNS, TEXTS, CUTS)
def test_any_chunking_releases_the_bytes_before_the_first_match(
    pattern: str, text: str, cuts: list[int]
) -> None:
    scanner = scanner_of(pattern)
    released = b""
    for chunk in chunked(text.encode(), cuts):
        released += scanner.push(chunk)
        if scanner.match is not None:
            break
    expected = first_match(pattern, text)
    if expected is None:
        assert scanner.match is None
        assert released + scanner.held == text.encode()
    else:
        begin, end = expected
        assert released.decode() == text[:begin]
        assert scanner.match == text[begin:end].encode()


#: Patterns over a few letters whose matches are few enough to list.
_SHORT = st.recursive(
    st.sampled_from(["a", "b", "c", "é", "[ab]", "[cé]"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map("({})".format),
        inner.map("({}){{1,2}}".format),
    ),
    max_leaves=4,
)
_WORDS = ["".join(word) for size in range(1, 5) for word in product("abcé", repeat=size)]


@given(_SHORT, st.text("abcé", max_size=10), CUTS)
def test_exactly_the_longest_beginning_of_a_match_is_held(
    pattern: str, text: str, cuts: list[int]
) -> None:
    whole = re.compile(pattern)
    words = [word.encode() for word in _WORDS if whole.fullmatch(word)]
    assume(words and not whole.fullmatch("a" * 5) and _longest(pattern) <= 4)
    beginnings = {word[:size] for word in words for size in range(len(word))}
    scanner = scanner_of(pattern)
    seen = b""
    for chunk in chunked(text.encode(), cuts):
        seen += chunk
        scanner.push(chunk)
        if scanner.match is not None:
            return
        ends = (seen[begin:] for begin in range(len(seen) + 1))
        assert scanner.held == next(end for end in ends if end in beginnings)


def _longest(pattern: str) -> int:
    """Characters of the longest match, from above: every repeat doubles, choices add."""
    letters = re.sub(r"\[..\]", "a", pattern)
    return sum(letters.count(one) for one in "abcé") * 2 ** letters.count("{1,2}")


def test_beginnings_in_one_state_end_together_and_the_earliest_counts() -> None:
    scanner = RegexScanner(regex_automaton("[ab]+c"))
    assert scanner.push(b"xabab") == b"x"
    assert scanner.held == b"abab"
    assert scanner.push(b"c") == b""
    assert scanner.match == b"ababc"


def test_text_that_can_match_no_more_is_released_at_once() -> None:
    scanner = RegexScanner(regex_automaton(r"\d{3}-\d{4}|-x"))
    assert scanner.push(b"call 555") == b"call "
    assert scanner.push(b"-") == b""
    assert scanner.push(b"!") == b"555-!"
    assert scanner.held == b""


def test_a_first_byte_of_a_character_already_tells() -> None:
    scanner = RegexScanner(regex_automaton("aé"))
    assert scanner.push(b"a\xc3") == b""
    assert scanner.push(b"\xa8") == b"a\xc3\xa8"  # è
    assert scanner.push(b"a\xe6") == b"a\xe6"


def test_one_beginning_is_kept_for_each_state_at_most() -> None:
    automaton = regex_automaton("[ab]{5}c")
    scanner = RegexScanner(automaton)
    scanner.push(b"ab" * 500)
    assert len(scanner._states) <= len(automaton.rows)
    assert scanner.held == b"babab"


@pytest.mark.parametrize(
    ("pattern", "unit", "num_open"),
    [("[ -~]{64}!", b"a", 64), ("foo.{0,60}bar", b"foo", 21), (r"\n.{0,80}!\n", b"a\n.", 1)],
)
def test_a_pattern_of_many_states_is_followed_as_long_as_few_beginnings_are_open(
    pattern: str, unit: bytes, num_open: int
) -> None:
    automaton = regex_automaton(pattern)
    assert len(automaton.rows) > MAX_BEGINNINGS
    scanner = RegexScanner(automaton)
    most = 0
    for _ in range(200):
        scanner.push(unit)
        most = max(most, len(scanner._states))
        assert scanner.match is None
    assert most == num_open
