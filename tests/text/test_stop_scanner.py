from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.text.regex_scanner import RegexScanner
from hybridgen.text.stop_scanner import FirstOf, stop_scanner
from hybridgen.text.stops import StopScanner
from tests.text.test_regex_automaton import TEXTS
from tests.text.test_regex_scanner import CUTS, first_match
from tests.text.test_stops import chunked

REGEXES = st.sampled_from(["a+b", "[ab]é", r"\d\s", "日.?z", "b{2,3}"])
STOPS = st.lists(st.text("abé日", min_size=1, max_size=3), min_size=1, max_size=3)


def test_nothing_costs_nothing() -> None:
    assert stop_scanner((), None) is None
    assert isinstance(stop_scanner([b"a"], None), StopScanner)
    assert isinstance(stop_scanner((), "a"), RegexScanner)


@given(STOPS, REGEXES, TEXTS, CUTS)
def test_stop_strings_and_a_pattern_are_one_pattern(
    stops: list[str], regex: str, text: str, cuts: list[int]
) -> None:
    scanner = stop_scanner([stop.encode() for stop in stops], regex)
    assert isinstance(scanner, FirstOf)
    alone = [stop_scanner([stop.encode() for stop in stops], None), stop_scanner((), regex)]
    released = b""
    for chunk in chunked(text.encode(), cuts):
        released += scanner.push(chunk)
        if scanner.match is not None:
            break
        for one in alone:
            assert one is not None
            one.push(chunk)
        assert len(scanner.held) == max(len(one.held) for one in alone if one is not None)
    expected = first_match("|".join([*stops, regex]), text)
    if expected is None:
        assert scanner.match is None
        assert released + scanner.held == text.encode()
    else:
        begin, end = expected
        assert released.decode() == text[:begin]
        assert scanner.match == text[begin:end].encode()
