from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InvalidRequest
from hybridgen.text.stops import StopAutomaton, StopScanner, automaton_of

_BYTES = st.lists(st.sampled_from(b"abc\xe2"), max_size=30).map(bytes)
_STOPS = st.lists(_BYTES.filter(bool).map(lambda stop: stop[:5]), min_size=1, max_size=4)
_CUTS = st.lists(st.integers(0, 30), max_size=6)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    return [data[start:stop] for start, stop in pairwise(edges)]


def first_match(data: bytes, stops: list[bytes]) -> tuple[int, int] | None:
    """(start, end) by the definition: ends first, then starts earliest."""
    ends = [
        (end, end - len(stop))
        for stop in stops
        for end in range(len(stop), len(data) + 1)
        if data[:end].endswith(stop)
    ]
    return (min(ends)[1], min(ends)[0]) if ends else None


def _held_bytes(data: bytes, stops: list[bytes]) -> int:
    """Longest suffix of ``data`` that begins a stop string, by trying them all."""
    parts = {stop[:size] for stop in stops for size in range(len(stop))}
    return max(size for size in range(len(data) + 1) if data[len(data) - size :] in parts)


@given(_BYTES, _STOPS, _CUTS)
def test_released_bytes_are_those_before_the_first_match(
    data: bytes, stops: list[bytes], cuts: list[int]
) -> None:
    scanner = StopScanner(StopAutomaton(stops))
    released = b""
    for chunk in chunked(data, cuts):
        released += scanner.push(chunk)
        if scanner.match is not None:
            break
    expected = first_match(data, stops)
    if expected is None:
        assert scanner.match is None
        assert released + scanner.held == data
    else:
        start, end = expected
        assert released == data[:start]
        assert scanner.match == data[start:end]


@given(_BYTES, _STOPS, _CUTS)
def test_exactly_the_longest_partial_match_is_held(
    data: bytes, stops: list[bytes], cuts: list[int]
) -> None:
    scanner = StopScanner(StopAutomaton(stops))
    seen = b""
    for chunk in chunked(data, cuts):
        seen += chunk
        scanner.push(chunk)
        if scanner.match is not None:
            return
        assert len(scanner.held) == _held_bytes(seen, stops)


def test_of_matches_that_end_together_the_longest_counts() -> None:
    scanner = StopScanner(StopAutomaton([b"c", b"abc", b"bc"]))
    assert scanner.push(b"xab") == b"x"
    assert scanner.push(b"cd") == b""
    assert scanner.match == b"abc"


def test_stop_that_ends_first_wins_over_a_longer_one_that_begins_earlier() -> None:
    scanner = StopScanner(StopAutomaton([b"abcd", b"bc"]))
    assert scanner.push(b"abcd") == b"a"
    assert scanner.match == b"bc"


def test_automaton_is_shared_by_equal_sets_of_stops() -> None:
    assert automaton_of([b"one", b"two"]) is automaton_of([b"two", b"one", b"two"])


def test_largest_allowed_stops_have_one_state_per_byte() -> None:
    stops = [bytes([value]) * 256 for value in range(4)]
    automaton = StopAutomaton(stops)
    assert len(automaton.rows) == 1 + 4 * 256
    scanner = StopScanner(automaton)
    assert scanner.push(stops[0][:-1] + b"\x01") == stops[0][:-1]


def test_empty_stop_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="stop") as caught:
        StopAutomaton([b"a", b""])
    assert caught.value.fields["param"] == "stop"
