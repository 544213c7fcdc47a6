from __future__ import annotations

import re
import time
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.config import Config
from hybridgen.formats.mock_model import EOS_ID, mock_model
from hybridgen.text.special_tokens import SpecialToken
from hybridgen.text.text_stream import Released, TextStream
from hybridgen.text.tokenizer import Tokenizer
from hybridgen.text.vocabulary import LeadingSpace, Vocabulary, build_vocabulary, kept_marks
from tests.text.test_stops import first_match

MOCK = build_vocabulary(mock_model(Config()).tokenizer)
MOCK_TEXTS = MOCK.visible_texts(False)
_HALF_IDS = [token_id for token_id in range(256, 512) if MOCK_TEXTS[token_id] is None]
IDS = st.lists(st.one_of(st.integers(0, 511), st.sampled_from(_HALF_IDS), st.just(97)), max_size=24)
CUTS = st.lists(st.integers(0, 24), max_size=8)
_STOP_TEXTS = st.one_of(
    st.text("ab é日🙂", min_size=1, max_size=4), st.sampled_from([" the", "aa", "日本", "\ufffd"])
)
STOPS = st.lists(_STOP_TEXTS, min_size=1, max_size=4)
RULES = st.sampled_from(LeadingSpace)


def _vocabulary(rule: LeadingSpace) -> Vocabulary:
    specials = [SpecialToken("s", i) for i in sorted(MOCK.special_ids)]
    return Vocabulary(MOCK.token_bytes, specials, rule)


_BY_RULE = {rule: _vocabulary(rule) for rule in LeadingSpace}


def _chunks(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    return [ids[start:stop] for start, stop in pairwise(edges)]


def _run(stream: TextStream, chunks: list[list[int]]) -> list[Released]:
    released = [stream.push(chunk) for chunk in chunks]
    released.append(stream.finish())
    return [one for one in released if one is not None]


def _text(released: list[Released]) -> str:
    return "".join(one.text for one in released)


@given(IDS, CUTS, RULES, st.booleans())
def test_every_chunking_gives_the_whole_text(
    ids: list[int], cuts: list[int], rule: LeadingSpace, skip_special: bool
) -> None:
    vocabulary = _BY_RULE[rule]
    stream = TextStream(vocabulary, skip_special=skip_special)
    released = _run(stream, _chunks(ids, cuts))
    assert _text(released) == vocabulary.decode(ids, skip_special)
    assert sum(one.num_tokens for one in released) == stream.num_released == len(ids)
    assert stream.num_tokens == len(ids)
    assert stream.num_chars == len(_text(released))
    assert stream.matched_tokens is None


@given(IDS, CUTS, RULES, STOPS, st.booleans())
def test_streamed_text_is_the_whole_text_cut_at_the_first_stop(
    ids: list[int], cuts: list[int], rule: LeadingSpace, stops: list[str], include_stop: bool
) -> None:
    vocabulary = _BY_RULE[rule]
    patterns = [stop.encode() for stop in stops]
    stream = TextStream(vocabulary, patterns, include_stop)
    released = _run(stream, _chunks(ids, cuts))
    visible = vocabulary.visible_bytes(True)
    whole = rule.strip(b"".join([visible[one] for one in ids]))
    match = first_match(whole, patterns)
    cut = whole if match is None else whole[: match[1] if include_stop else match[0]]
    assert _text(released) == cut.decode("utf-8", "replace")
    num_tokens = len(ids)
    if match is not None:
        num_stripped = len(b"".join([visible[one] for one in ids])) - len(whole)
        ends = list(accumulate(len(visible[one]) for one in ids))
        num_tokens = 1 + next(i for i, end in enumerate(ends) if end - num_stripped >= match[1])
        assert stream.matched_tokens == num_tokens
    else:
        assert stream.matched_tokens is None
    assert sum(one.num_tokens for one in released) == stream.num_tokens == num_tokens


@given(IDS, CUTS, st.sampled_from(["a+ ", " ?(the|a{2,3})", "(é|日)a?(🙂|a)"]))
def test_streamed_text_is_the_whole_text_cut_at_the_first_match_of_a_pattern(
    ids: list[int], cuts: list[int], pattern: str
) -> None:
    stream = TextStream(MOCK, stop_regex=pattern)
    text = _text(_run(stream, _chunks(ids, cuts)))
    one_by_one = TextStream(MOCK, stop_regex=pattern)
    assert text == _text(_run(one_by_one, [[one] for one in ids]))
    assert stream.matched_tokens == one_by_one.matched_tokens
    visible = MOCK.visible_bytes(True)
    whole = MOCK.leading_space.strip(b"".join([visible[one] for one in ids]))
    ends = [end for end in range(len(whole)) if re.search(pattern.encode(), whole[: end + 1])]
    assert (stream.matched_tokens is not None) == bool(ends)
    if not ends:
        assert text == MOCK.decode(ids)


@given(IDS, STOPS)
def test_released_tokens_always_suffice_for_the_released_text(
    ids: list[int], stops: list[str]
) -> None:
    stream = TextStream(MOCK, [stop.encode() for stop in stops])
    text = ""
    for token_id in ids:
        released = stream.push([token_id])
        if released is not None:
            text += released.text
            covered = MOCK.decode(ids[: stream.num_released])
            assert covered.startswith(text)


@given(IDS, IDS)
def test_only_new_text_of_a_continued_prompt_is_shown(prompt: list[int], new: list[int]) -> None:
    stream = TextStream(MOCK, prompt_tail_ids=prompt[-4:])
    text = _text(_run(stream, [[one] for one in new]))
    together = MOCK.decode(prompt + new)
    assert together.endswith(text) or text == MOCK.decode(new)
    assert len(text) <= len(MOCK.decode(new))


def test_prompt_that_ends_inside_a_character_shows_it_when_new_ids_finish_it() -> None:
    euro = "€".encode()
    stream = TextStream(MOCK, prompt_tail_ids=[*b"costs ", *euro[:2]])
    assert stream.push([euro[2]]) == Released("€", 1)
    broken = TextStream(MOCK, prompt_tail_ids=[*b"costs ", *euro[:2]])
    assert broken.push([*b"5"]) == Released("5", 1)
    after_special = TextStream(MOCK, prompt_tail_ids=[*euro[:2], EOS_ID])
    assert after_special.push([euro[2]]) == Released("\ufffd", 1)


def test_leading_space_goes_at_the_start_of_a_text_but_not_of_a_continuation() -> None:
    vocabulary = _BY_RULE[LeadingSpace.STRIP_ONE]
    assert TextStream(vocabulary).push([*b" a b"]) == Released("a b", 4)
    continued = TextStream(vocabulary, prompt_tail_ids=[*b"hello"])
    assert continued.push([*b" a b"]) == Released(" a b", 4)
    after_special = TextStream(vocabulary, prompt_tail_ids=[*b"hello", EOS_ID])
    assert after_special.push([*b" a"]) == Released("a", 2)


def test_held_text_holds_its_ids_back() -> None:
    stream = TextStream(MOCK, [b"STOP"])
    assert stream.push([*b"a"]) == Released("a", 1)
    assert stream.push([*b"ST"]) is None
    assert stream.push([EOS_ID]) is None  # no text of its own, but its turn has not come
    assert stream.push([*b"x"]) == Released("STx", 4)


def test_stop_over_token_borders_ends_the_text_and_ignores_what_follows() -> None:
    stream = TextStream(MOCK, ["日本".encode()])
    assert stream.push([*b"ab"]) == Released("ab", 2)
    for value in "日本".encode()[:-1]:
        assert stream.push([value]) is None
    assert stream.push(["本".encode()[-1], *b"more"]) == Released("", 6)
    assert (stream.matched_tokens, stream.num_tokens, stream.num_chars) == (8, 8, 2)
    assert stream.push([*b"later"]) is None
    assert stream.finish() is None


def test_stop_is_kept_when_asked_for() -> None:
    stream = TextStream(MOCK, [b"\n\n"], include_stop=True)
    assert stream.push([*b"a\n\nb"]) == Released("a\n\n", 3)


def test_partial_stop_at_the_end_is_released() -> None:
    stream = TextStream(MOCK, [b"STOP"])
    assert stream.push([*b"aST"]) == Released("a", 1)
    assert stream.finish() == Released("ST", 2)
    assert stream.finish() is None


def test_ids_beyond_the_vocabulary_of_a_padded_model_have_no_text() -> None:
    padded = Vocabulary(MOCK.token_bytes, vocab_size=600)
    assert TextStream(padded).push([97, 599]) == Released("a", 2)


@pytest.mark.parametrize("stops", [[], [b"\n\nUser:", b"</s>"]])
def test_cost_per_token_does_not_grow_with_the_text(smollm2: Tokenizer, stops: list[bytes]) -> None:
    ids = smollm2.encode("The quick brown fox, 42 times — naïve café 日本語 🙂!\n") * 40

    def cpu_time_s(num_repeats: int) -> float:
        best = 1e9
        for _ in range(5):
            stream = TextStream(smollm2.vocabulary, stops)
            start = time.process_time()
            for _ in range(num_repeats):
                for token_id in ids:
                    stream.push([token_id])
            best = min(best, time.process_time() - start)
        return best / num_repeats

    assert cpu_time_s(8) < 4 * cpu_time_s(1) + 0.01


def test_marks_of_tool_calls_can_be_kept_while_other_special_tokens_are_left_out() -> None:
    specials = [SpecialToken("[TOOL_CALLS]", 1), SpecialToken("</s>", 2)]
    vocabulary = Vocabulary([b"a", b"[TOOL_CALLS]", b"</s>"], specials)

    def text(*, skip_special: bool, keep_tool_marks: bool) -> str:
        marks = kept_marks(tools=keep_tool_marks, reasoning=False)
        stream = TextStream(vocabulary, skip_special=skip_special, kept_marks=marks)
        return _text(_run(stream, [[0], [1, 0, 2]]))

    assert text(skip_special=True, keep_tool_marks=True) == "a[TOOL_CALLS]a"
    assert text(skip_special=True, keep_tool_marks=False) == "aa"
    assert text(skip_special=False, keep_tool_marks=False) == "a[TOOL_CALLS]a</s>"


@given(st.lists(st.integers(0, 255), max_size=12), st.data())
def test_a_head_comes_before_all_other_text_and_belongs_to_no_token(
    ids: list[int], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 4))
    pieces = [ids[start : start + size] for start in range(0, len(ids), size)]
    stops = data.draw(st.sampled_from([[], [b"a"], [b"<think>"]]))
    plain = _run(TextStream(MOCK, stops, prompt_tail_ids=[65]), pieces)
    headed = _run(TextStream(MOCK, stops, prompt_tail_ids=[65], head="<think>"), pieces)
    assert _text(headed) == "<think>" + _text(plain)
    assert sum(one.num_tokens for one in headed) == sum(one.num_tokens for one in plain)
