from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.text.reasoning import FORMATS
from hybridgen.text.reasoning_parser import Reasoning, ReasoningParser
from tests.text.tool_calls.cut_text import cuts

QWEN3, DEEPSEEK, MISTRAL = (FORMATS[name] for name in ("qwen3", "deepseek_r1", "mistral"))
TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "think", "\n", " ", "a", "é", "<tool_call>"]),
    max_size=12,
).map("".join)


def parsed(pieces: list[str], name: str = "qwen3") -> tuple[str, str]:
    parser = ReasoningParser(FORMATS[name])
    found = [one for piece in pieces for one in parser.push(piece)] + parser.finish()
    is_reasoning = [isinstance(one, Reasoning) for one in found]
    assert is_reasoning == sorted(is_reasoning, reverse=True), "reasoning comes first"
    assert all(one.text for one in found)
    reasoning = "".join(one.text for one in found if isinstance(one, Reasoning))
    return reasoning, "".join(one.text for one in found if not isinstance(one, Reasoning))


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("<think>\nso\n on\n</think>\n\nHi\n", "qwen3", ("so\n on", "Hi\n")),
        ("\n<think>so</think>", "qwen3", ("so", "")),
        ("<think>\n\n</think>\n\nHi", "qwen3", ("", "Hi")),
        ("<think>cut of", "qwen3", ("cut of", "")),
        ("<think>cut </thin", "qwen3", ("cut </thin", "")),
        ("  Hi <think>no</think>", "qwen3", ("", "  Hi <think>no</think>")),
        ("<thin", "qwen3", ("", "<thin")),
        ("so</think>Hi", "qwen3", ("", "so</think>Hi")),
        ("so</think>Hi", "deepseek_r1", ("so", "Hi")),
        ("<think>so</think>Hi</think>", "deepseek_r1", ("so", "Hi</think>")),
        ("[THINK]so[/THINK]Hi", "mistral", ("so", "Hi")),
        ("", "qwen3", ("", "")),
    ],
)
def test_reasoning_is_told_from_the_rest(text: str, name: str, expected: tuple[str, str]) -> None:
    assert parsed([text], name) == expected


@given(TEXTS, st.sampled_from(["qwen3", "deepseek_r1"]), st.data())
def test_the_same_comes_out_however_the_text_is_cut(
    text: str, name: str, data: st.DataObject
) -> None:
    assert parsed(data.draw(cuts(text)), name) == parsed([text], name)


def test_pieces_are_passed_on_as_soon_as_no_mark_can_begin_in_them() -> None:
    parser = ReasoningParser(QWEN3)
    told = [parser.push(piece) for piece in ("<think>", "\na", " <", "b\n", "</thi", "nk>", "\nc")]
    texts = [[one.text for one in pieces] for pieces in told]
    assert texts == [[], ["a"], [], [" <b"], [], [], ["c"]]
    assert parser.finish() == []


def test_the_cost_of_a_token_does_not_grow_with_the_text() -> None:
    def cpu_time_s(num_pieces: int) -> float:
        best = 9.0
        for _ in range(3):
            parser = ReasoningParser(QWEN3)
            parser.push("<think>a")
            start = time.process_time()
            for _ in range(num_pieces):
                parser.push(" ")
            best = min(best, time.process_time() - start)
        return best / num_pieces

    assert cpu_time_s(8_000) < 4 * cpu_time_s(1_000) + 1e-5
