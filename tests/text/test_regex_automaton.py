from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InvalidRequest
from hybridgen.text.regex_automaton import DEAD, MATCH, START, RegexAutomaton, regex_automaton

#: CPU time of a compilation: the best of so many tries.
MAX_COMPILE_S = 0.1
NUM_TRIES = 5

_LETTERS = ["a", "b", "é", "日", "🙂", "\n", r"\."]
_SETS = [".", r"\d", r"\w", r"\S", "[ab]", "[^a]", "[^é日]", "[a-z]", "[à-ÿ]", r"[\s日]"]
_REPEATS = ["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}?"]


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map("({})".format),
        st.tuples(inner, st.sampled_from(_REPEATS)).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


#: Within what Python's engine understands in the same way and takes no long time for.
PATTERNS = st.recursive(st.sampled_from(_LETTERS + _SETS), _grow, max_leaves=5)
TEXTS = st.text("abé日🙂\n. 1z", max_size=10)


def ends_first(pattern: str, text: str) -> bool:
    """``text`` matches, and no shorter beginning of it does."""
    whole = re.compile(pattern, re.ASCII)
    return [end for end in range(len(text) + 1) if whole.fullmatch(text[:end])][:1] == [len(text)]


def run(automaton: RegexAutomaton, data: bytes) -> int:
    state = START
    for kind in data.translate(automaton.kinds):
        state = DEAD if state == MATCH else automaton.rows[state][kind]
    return state


@given(PATTERNS, TEXTS)
def test_it_ends_where_a_match_ends_first(pattern: str, text: str) -> None:
    if re.fullmatch(pattern, "", re.ASCII):
        with pytest.raises(InvalidRequest, match="matches the empty text"):
            RegexAutomaton(pattern)
        return
    assert (run(RegexAutomaton(pattern), text.encode()) == MATCH) == ends_first(pattern, text)


@given(PATTERNS)
def test_every_state_can_still_reach_the_end_of_a_match(pattern: str) -> None:
    try:
        rows = RegexAutomaton(pattern).rows
    except InvalidRequest:
        return
    reaching = {MATCH}
    while grown := {
        state for state, row in enumerate(rows) if state not in reaching and reaching & set(row)
    }:
        reaching |= grown
    assert reaching == set(range(len(rows))) - {DEAD}


@pytest.mark.parametrize(
    "data", [b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"]
)
def test_bytes_that_are_no_character_match_nothing(data: bytes) -> None:
    assert run(RegexAutomaton(r"[\s\S]+?x"), data + b"x") == DEAD


HOSTILE = {
    "nested": "(a+)+b",
    "exponential": "(a|b)*a(a|b){20}",
    "wide": "(.*a){12}z",
    "long": ".{1000}",
    "many": ".{0,60}.{0,60}z",
    "repeats of repeats": "((.{1,9}){1,9}){1,9}q",
    "optional": "(a?){500}a{500}",
    "any or none": "(.?){500}z",
    "millions": "((a{1000}){1000}){1000}",
    "nothing, often": "(((){1000}){1000}){1000}",
    "alternatives": "|".join(chr(0x4E00 + 97 * n) for n in range(64)),
    "scattered": "[" + "".join(chr(0x4E00 + 97 * n) for n in range(80)) + "]{9}!",
    "inverted": r"([^a]|\W|[^é]|\S){30}!",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pattern_is_compiled_or_refused_in_bounded_time(name: str) -> None:
    best_s = float("inf")
    for _ in range(NUM_TRIES):
        started_s = time.thread_time()
        with contextlib.suppress(InvalidRequest):
            RegexAutomaton(HOSTILE[name])
        best_s = min(best_s, time.thread_time() - started_s)
        if best_s <= MAX_COMPILE_S:
            return
    pytest.fail(f"{best_s:.3f} s")


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(a|b)*a(a|b){20}", "too many states; limit 1000"),
        ("((a{1000}){1000}){1000}", "too much work"),
        ("[ -~]{990}!", "too many beginnings .* limit 64"),
        ("a" * 70, "too many beginnings .* limit 64"),
        ("x*", "matches the empty text"),
        ("a|", "matches the empty text"),
        ("", "matches the empty text"),
    ],
)
def test_what_cannot_be_compiled_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what) as caught:
        regex_automaton(pattern)
    assert caught.value.fields["param"] == "stop_regex"
    assert caught.value.fields["remedy"]


def test_automaton_is_shared_by_equal_patterns() -> None:
    assert regex_automaton("a+b") is regex_automaton("a+b")


def test_what_follows_the_earliest_end_costs_nothing() -> None:
    assert len(RegexAutomaton("a.{0,900}").rows) == len(RegexAutomaton("a").rows)
