from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.client.chunk import StreamChunk
from hybridgen.client.text_cursor import TextCursor
from hybridgen.messages import TextDelta
from hybridgen.request import TokenLogprob
from tests.support.scripted_server import GoldenText

RID = b"r" * 16


def test_take_returns_a_fresh_delta_whole() -> None:
    cursor = TextCursor()
    logprobs = [TokenLogprob(5, -0.5)]
    assert cursor.take(TextDelta(RID, 0, 0, "ab", [5], logprobs)) == StreamChunk(
        "ab", [5], logprobs
    )
    assert (cursor.num_tokens, cursor.num_chars) == (1, 2)


def test_take_cuts_tokens_characters_and_logprobs_already_shown() -> None:
    cursor = TextCursor()
    cursor.take(TextDelta(RID, 0, 0, "ab", [5, 6]))
    logprobs = [TokenLogprob(6, -1.0), TokenLogprob(7, -2.0)]
    chunk = cursor.take(TextDelta(RID, 1, 1, "bc", [6, 7], logprobs))
    assert chunk == StreamChunk("c", [7], logprobs[1:])


def test_take_returns_none_for_a_pure_repeat() -> None:
    cursor = TextCursor()
    delta = TextDelta(RID, 0, 0, "ab", [5, 6])
    cursor.take(delta)
    assert cursor.take(delta) is None
    assert (cursor.num_tokens, cursor.num_chars) == (2, 2)


def test_a_delta_ahead_in_tokens_or_in_characters_is_a_gap() -> None:
    cursor = TextCursor()
    assert cursor.is_gap(TextDelta(RID, 1, 0, "x", [1]))
    assert cursor.is_gap(TextDelta(RID, 0, 1, "x", [1]))
    assert not cursor.is_gap(TextDelta(RID, 0, 0, "x", [1]))


def test_tokens_without_text_and_text_without_tokens_both_count() -> None:
    cursor = TextCursor()
    assert cursor.take(TextDelta(RID, 0, 0, "", [1])) == StreamChunk("", [1])
    assert cursor.take(TextDelta(RID, 1, 0, "x", [])) == StreamChunk("x", [])
    assert (cursor.num_tokens, cursor.num_chars) == (1, 1)


@given(
    pieces=st.lists(st.text(max_size=3), min_size=1, max_size=20),
    spans=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=60),
)
def test_any_overlapping_deltas_show_a_prefix_of_the_text_and_never_a_gap(
    pieces: list[str], spans: list[tuple[int, int]]
) -> None:
    golden = GoldenText(pieces)
    cursor = TextCursor()
    text, ids = "", []
    for start, length in spans:
        stop = min(start + length, len(pieces))
        delta = golden.delta(RID, min(start, stop), stop)
        if cursor.is_gap(delta):
            continue
        chunk = cursor.take(delta)
        if chunk is not None:
            text += chunk.text
            ids += chunk.token_ids
    assert ids == golden.ids[: len(ids)]
    assert text == golden.text[: golden.char_offset(len(ids))]
    assert (cursor.num_tokens, cursor.num_chars) == (len(ids), len(text))
