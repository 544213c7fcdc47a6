r"""How byte-level BPE cuts a text before it merges: the rules that ``tokenizer.ggml.pre`` names.

Each rule is the one of the ``tokenizer.json`` that the models were published with, and of
llama.cpp under the same name. The patterns are cut at one after the other: what one leaves
between its matches is a piece for the next.
"""

from __future__ import annotations

from typing import NamedTuple

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
# Words that end where a capital begins: Tekken's, and with endings GPT-4o's.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_CASED_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class SplitRule(NamedTuple):
    """One way to cut."""

    patterns: tuple[str, ...]
    takes_whole_pieces: bool = False
    """A piece that is a token is taken as it stands, whatever its merges would make of it."""
    is_composed: bool = False
    """Characters are composed first (Unicode's form C)."""


_LLAMA3 = f"{_ENDINGS}|{_WORD}" + r"|\p{N}{1,3}" + _SIGNS + _SPACES
_QWEN2 = f"{_ENDINGS}|{_WORD}" + r"|\p{N}" + _SIGNS + _SPACES
_TEKKEN = "|".join(_CASED) + r"|\p{N}" + _CASED_SIGNS + _SPACES
_GPT4O = "|".join(f"{word}{_ENDINGS}?" for word in _CASED) + r"|\p{N}{1,3}" + _CASED_SIGNS + _SPACES
_SINGLE_DIGITS = SplitRule((r"\p{N}", _GPT2))

_RULES: dict[SplitRule, tuple[str, ...]] = {
    SplitRule((_GPT2,)): ("gpt-2", "gpt2", "phi-2", "mpt"),
    SplitRule((_LLAMA3,), takes_whole_pieces=True): ("llama-bpe", "llama3", "llama-v3"),
    SplitRule((_LLAMA3,)): ("dbrx",),  # Phi-4
    SplitRule((_QWEN2,), is_composed=True): ("qwen2",),
    SplitRule((_QWEN2,)): ("deepseek-r1-qwen",),
    SplitRule((_TEKKEN,), takes_whole_pieces=True): ("tekken",),
    SplitRule((_GPT4O,)): ("gpt-4o",),  # Phi-4-mini
    _SINGLE_DIGITS: ("smollm", "starcoder", "refact", "command-r"),
    # What a file means that names no rule: GPT-2's, with signs apart and digits in threes.
    SplitRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): ("default",),
}
#: By the names that files give them.
SPLIT_RULES: dict[str, SplitRule] = {name: rule for rule, names in _RULES.items() for name in names}
