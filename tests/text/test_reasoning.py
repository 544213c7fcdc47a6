from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.config import ModelSection
from hybridgen.text.reasoning import (
    FORMATS,
    OPEN_TAIL_TOKENS,
    left_open,
    num_reasoning_tokens,
    reasoning_format,
)

QWEN3, DEEPSEEK = FORMATS["qwen3"], FORMATS["deepseek_r1"]


def test_every_format_can_be_asked_for_and_no_other() -> None:
    words = typing.get_args(typing.get_type_hints(ModelSection)["reasoning_parser"])
    assert set(words) == {"auto", "none", *FORMATS}


@pytest.mark.parametrize(
    ("template", "wanted", "name"),
    [
        ("{{ content.split('</think>')[-1] }}", "auto", "qwen3"),
        ("{{ '[THINK]' }}{{ '[/THINK]' }}", "auto", "mistral"),
        ("{{ messages }}", "auto", None),
        ("{{ messages }}", "deepseek_r1", "deepseek_r1"),
        ("</think>", "none", None),
        (None, "qwen3", None),
    ],
)
def test_the_template_tells_the_format_unless_it_is_named(
    template: str | None, wanted: str, name: str | None
) -> None:
    found = reasoning_format(template, wanted)
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("tail", "head"),
    [
        (b"<|im_start|>assistant\n<think>\n", "<think>\n"),
        (b"<think>", "<think>"),
        (b"[THINK]\n\n", "[THINK]\n\n"),
        (b"<think>\n\n</think>\n\n", ""),
        (b"\xe2\x82<thin", ""),
        (b"", ""),
    ],
)
def test_a_prompt_that_ends_with_the_mark_leaves_reasoning_open(tail: bytes, head: str) -> None:
    assert left_open(tail) == head


def test_the_tail_that_is_looked_at_holds_a_mark_byte_by_byte() -> None:
    longest = max(len(one.opener) for one in FORMATS.values())
    assert longest + 2 <= OPEN_TAIL_TOKENS


@given(
    reasoning=st.text(st.sampled_from("ab\n"), max_size=8),
    rest=st.text(st.sampled_from("cd\n"), max_size=8),
    is_closed=st.booleans(),
)
def test_tokens_count_up_to_the_one_that_ends_the_closing_mark(
    reasoning: str, rest: str, is_closed: bool
) -> None:
    """Bytes as tokens: the count is the length."""
    text = f"<think>{reasoning}" + (f"</think>{rest}" if is_closed else "")
    token_bytes = [bytes([value]) for value in range(256)]
    ids = [*text.encode()]
    expected = len(ids) - (len(rest) if is_closed else 0)
    assert num_reasoning_tokens(QWEN3, text, ids, token_bytes) == expected


def test_a_prompt_that_opened_it_counts_from_the_first_token() -> None:
    token_bytes = [b"so", b" on</think>x", b"y", b"</think>"]
    assert num_reasoning_tokens(QWEN3, "<think>\nso on</think>xy", [0, 1, 2], token_bytes) == 2
    assert num_reasoning_tokens(QWEN3, "so on</think>xy", [0, 1, 2], token_bytes) == 0
    assert num_reasoning_tokens(DEEPSEEK, "so on</think>xy", [0, 1, 2], token_bytes) == 2
    assert num_reasoning_tokens(DEEPSEEK, "</think>", [3], token_bytes) == 1
    assert num_reasoning_tokens(DEEPSEEK, "", [], token_bytes) == 0
