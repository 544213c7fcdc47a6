"""Reasoning: how models mark what they think before they answer, and what a server makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hybridgen.text.tool_calls.text_feed import SPACES


class ReasoningFormat(NamedTuple):
    """Reasoning stands between two marks, at the beginning of an answer.

    Templates may write the opening mark as the prompt's last word; the answer then begins in it.
    """

    name: str
    """What --reasoning-parser calls it."""
    opener: str
    closer: str
    is_always_open: bool = False
    """An answer is reasoning up to its closing mark, whether or not anybody opened it."""


#: By the names that vLLM gives them, in the order in which templates are looked at.
FORMATS: dict[str, ReasoningFormat] = {
    one.name: one
    for one in (
        ReasoningFormat("qwen3", "<think>", "</think>"),
        ReasoningFormat("deepseek_r1", "<think>", "</think>", is_always_open=True),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    )
}

#: Texts that are special tokens of some models.
REASONING_MARKS = frozenset(mark for one in FORMATS.values() for mark in (one.opener, one.closer))

#: Of a prompt, last tokens that tell whether it leaves reasoning open: a mark, byte by byte, and
#: white space.
OPEN_TAIL_TOKENS = 16
_OPENERS = tuple({one.opener.encode() for one in FORMATS.values()})


def reasoning_format(template: str | None, wanted: str = "auto") -> ReasoningFormat | None:
    """The format of a model's reasoning.

    Args:
        template: source of its chat template; None when it has none.
        wanted: ``auto`` looks at the template, ``none`` is none, else the name of a format.

    Returns:
        None when there is none.
    """
    if template is None or wanted == "none":
        return None
    if wanted != "auto":
        return FORMATS[wanted]
    return next((one for one in FORMATS.values() if one.closer in template), None)


def left_open(prompt_tail: bytes) -> str:
    """The mark, and the white space behind it, that a prompt ends with; else nothing."""
    core = prompt_tail.rstrip(SPACES.encode())
    opener = next((one for one in _OPENERS if core.endswith(one)), b"")
    return (opener + prompt_tail[len(core) :]).decode() if opener else ""


def num_reasoning_tokens(
    format_: ReasoningFormat, text: str, token_ids: Sequence[int], token_bytes: Sequence[bytes]
) -> int:
    """Tokens of an answer that are reasoning, marks included.

    Args:
        format_: of the model.
        text: of the answer.
        token_ids: of the answer.
        token_bytes: bytes of each token of the vocabulary.
    """
    if not format_.is_always_open and not text.lstrip(SPACES).startswith(format_.opener):
        return 0
    closer = format_.closer.encode()
    parts = [token_bytes[token_id] for token_id in token_ids]
    index = b"".join(parts).find(closer)
    if index < 0:
        return len(parts)
    end, num_tokens = index + len(closer), 0
    while end > 0:
        end -= len(parts[num_tokens])
        num_tokens += 1
    return num_tokens
