from __future__ import annotations

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.text.regex_syntax import Characters, Choice, Repeat, Series, parse_regex

A, B = (Characters(((ord(letter), ord(letter)),)) for letter in "ab")


def characters(pattern: str) -> object:
    tree = parse_regex(pattern)
    assert isinstance(tree, Characters)
    return tree.ranges


@pytest.mark.parametrize(
    ("pattern", "tree"),
    [
        ("a", A),
        ("ab", Series((A, B))),
        ("a|b", Choice((A, B))),
        ("a|", Choice((A, Series(())))),
        ("(a)", A),
        ("(?:ab)*", Repeat(Series((A, B)), 0, None)),
        ("a+", Repeat(A, 1, None)),
        ("a+?", Repeat(A, 1, None)),
        ("a??", Repeat(A, 0, 1)),
        ("a{3}", Repeat(A, 3, 3)),
        ("a{3,}", Repeat(A, 3, None)),
        ("a{0,3}?b", Series((Repeat(A, 0, 3), B))),
    ],
)
def test_patterns_become_trees(pattern: str, tree: object) -> None:
    assert parse_regex(pattern) == tree


@pytest.mark.parametrize(
    ("pattern", "ranges"),
    [
        (r"\d", ((0x30, 0x39),)),
        (r"\s", ((9, 13), (32, 32))),
        (r"[\s\S]", ((0, 0xD7FF), (0xE000, 0x10FFFF))),
        (r"(?s).", ((0, 0xD7FF), (0xE000, 0x10FFFF))),
        (".", ((0, 9), (11, 0xD7FF), (0xE000, 0x10FFFF))),
        ("[a-cx]", ((0x61, 0x63), (0x78, 0x78))),
        ("[-a]", ((0x2D, 0x2D), (0x61, 0x61))),
        ("[a-]", ((0x2D, 0x2D), (0x61, 0x61))),
        (r"[\]\-]", ((0x2D, 0x2D), (0x5D, 0x5D))),
        ("[.$^(]", ((0x24, 0x24), (0x28, 0x28), (0x2E, 0x2E), (0x5E, 0x5E))),
        (r"[^\x00-\u2027]", ((0x2028, 0xD7FF), (0xE000, 0x10FFFF))),
        (r"\.", ((0x2E, 0x2E),)),
        (r"\n", ((0x0A, 0x0A),)),
        (r"\u00e9", ((0xE9, 0xE9),)),
        ("(?i)k", ((0x4B, 0x4B), (0x6B, 0x6B))),
        ("(?i)[ж-з]", ((0x416, 0x417), (0x436, 0x437))),
        (r"(?is)\W", ((0, 47), (58, 64), (91, 94), (96, 96), (123, 0xD7FF), (0xE000, 0x10FFFF))),
        ("}", ((0x7D, 0x7D),)),
        ("]", ((0x5D, 0x5D),)),
    ],
)
def test_characters_and_sets_are_ranges(pattern: str, ranges: object) -> None:
    assert characters(pattern) == ranges


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("a$", "an anchor at character 1"),
        ("^a", "an anchor at character 0"),
        (r"\bword", "an anchor"),
        (r"\Aa", "an anchor"),
        ("(?=a)b", "look-ahead"),
        ("a(?!b)", "look-ahead at character 1"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        ("(?P<x>a)", "a named group"),
        ("(?<x>a)", "a named group"),
        ("(?>a)", "an atomic group"),
        ("(?#note)a", "a comment"),
        ("(?(1)a|b)", "a condition"),
        ("(?P=x)", "a reference to a group"),
        (r"(a)\1", "a back-reference"),
        (r"\k<x>", "a back-reference"),
        (r"\p{Lu}", "a Unicode property"),
        ("(?m)a", "flags"),
        ("a(?i)b", "flags"),
        (r"\q", "an escape of no meaning"),
        (r"\0", "an escape of no meaning"),
        ("a\\", "an escape of no meaning"),
        (r"\xg0", "an escape of no character"),
        (r"\u12", "an escape of no character"),
        (r"\ud800", "an escape of no character"),
        (r"[\b]", "an anchor"),
        ("(a", "a group that is not closed"),
        ("a)", "a ) that closes no group"),
        ("[a", "a set that is not closed at character 0"),
        ("[]", "a set without characters"),
        ("[]a]", "a set without characters"),
        (r"[^\s\S]", "a set without characters"),
        ("[b-a]", "a range that is none"),
        (r"[a-\d]", "a range that is none"),
        ("[[:alpha:]]", "a POSIX class"),
        ("(?i)[Ā-￿]", "a range too large"),
        ("*a", "nothing to repeat"),
        ("(|*)", "nothing to repeat"),
        ("{2}", "nothing to repeat"),
        ("a**", "a repetition of a repetition"),
        ("a++", "a repetition of a repetition"),
        ("a{2}{3}", "a repetition of a repetition"),
        ("a{,3}", "a { that begins no"),
        ("a{", "a { that begins no"),
        ("a{x}", "a { that begins no"),
        ("a{٣}", "a { that begins no"),
        ("a{3,2}", "a repetition out of range"),
        ("a{1001}", "a repetition out of range"),
        ("a{99999}", "a { that begins no"),
        ("(" * 33 + "a" + ")" * 33, "groups too deep"),
    ],
)
def test_what_is_outside_the_subset_is_refused_by_its_name(pattern: str, what: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_regex(pattern)
    assert what in caught.value.message
    assert caught.value.fields["param"] == "stop_regex"
    assert caught.value.fields["remedy"]


def test_groups_may_be_as_deep_as_the_limit() -> None:
    assert parse_regex("(" * 32 + "a" + ")" * 32) == A
