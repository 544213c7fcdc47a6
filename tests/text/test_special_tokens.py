from __future__ import annotations

from hybridgen.text.special_tokens import SpecialToken, SpecialTokens

SPECIALS = SpecialTokens(
    [
        SpecialToken("<|a|>", 1),
        SpecialToken("<|a|><|a|>", 2),
        SpecialToken("[L]", 3, strips_left=True),
        SpecialToken("[R]", 4, strips_right=True),
        SpecialToken("", 5),
    ]
)


def _split(text: str, guard: str = "") -> list[int | str]:
    return list(SPECIALS.split(text, guard))


def test_text_is_cut_at_special_tokens() -> None:
    assert _split("x<|a|>y") == ["x", 1, "y"]
    assert _split("<|a|>") == [1]
    assert _split("plain <|a|") == ["plain <|a|"]
    assert _split("") == []


def test_longest_special_token_wins() -> None:
    assert _split("<|a|><|a|><|a|>") == [2, 1]


def test_strip_flags_eat_white_space_beside_the_token() -> None:
    assert _split("x \n[L] y") == ["x", 3, " y"]
    assert _split("x [R]\n y") == ["x ", 4, "y"]
    assert _split("x [R] \n [L] y") == ["x ", 4, 3, " y"]


def test_guarded_special_token_is_text_without_its_guards() -> None:
    assert _split("#<|a|>", "#") == ["<|a|>"]
    assert _split("<|#a|>", "#") == ["<|a|>"]
    assert _split("<|a|>#b", "#") == [1, "b"]


def test_no_special_tokens_leave_the_text_whole() -> None:
    assert list(SpecialTokens([]).split("<|a|>")) == ["<|a|>"]
