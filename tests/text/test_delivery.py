"""One text from shared memory to a client: offsets, ends, and how a rebuilt one goes on."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.config import Config
from hybridgen.errors import InternalError
from hybridgen.formats.mock_model import EOS_ID, mock_model
from hybridgen.ipc.logprob_ring import LogprobRing
from hybridgen.ipc.slot_table import Finish, RowError, SlotTable, SlotWord, pack_finish
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import TextDelta
from hybridgen.request import FinishReason, SamplingParams, TokenLogprob
from hybridgen.sampling import parameters
from hybridgen.text import delivery
from hybridgen.text.delivery import Delivery, SharedViews
from hybridgen.text.vocabulary import build_vocabulary

VOCABULARY = build_vocabulary(mock_model(Config()).tokenizer)
SLOT, EPOCH = 1, 5
PROMPT = [72, 105]
LOGPROB_DEPTH = 8


class Source:
    """A slot that the test fills, and deliveries from it."""

    def __init__(self, params: SamplingParams | None = None, prompt: Sequence[int] = PROMPT):
        self.views = SharedViews(
            SlotTable.in_memory(2, 128),
            TokenStore.in_memory(2, 128),
            LogprobRing.in_memory(2, LOGPROB_DEPTH),
        )
        slots = self.views.slots
        slots.set_ids(SLOT, b"client-000000000", b"request-00000000")
        parameters.pack(params or SamplingParams(), (EOS_ID,), 0, slots.parameters(SLOT))
        self.encode(prompt)

    def encode(self, prompt: Sequence[int]) -> None:
        self.views.tokens.write(SLOT, 0, prompt)
        self.views.slots.store(SLOT, SlotWord.PROMPT_LEN, len(prompt))

    def open(self) -> Delivery:
        return Delivery(SLOT, EPOCH, self.views, VOCABULARY, now_s=0.0)

    def generate(self, ids: Sequence[int]) -> None:
        slots = self.views.slots
        generated = slots.load(SLOT, SlotWord.GENERATED)
        self.views.tokens.write(SLOT, slots.load(SLOT, SlotWord.PROMPT_LEN) + generated, ids)
        for offset, token_id in enumerate(ids):
            record = TokenLogprob(token_id, -float(token_id), [(token_id, -float(token_id))])
            self.views.logprobs.write(SLOT, generated + offset, record)
        slots.store(SLOT, SlotWord.GENERATED, generated + len(ids))

    def finish(
        self, reason: FinishReason = FinishReason.LENGTH, error: RowError = RowError.OK
    ) -> None:
        generated = self.views.slots.load(SLOT, SlotWord.GENERATED)
        self.views.slots.store(SLOT, SlotWord.FINISH, pack_finish(Finish(reason, error, generated)))


class Reader:
    """A client: takes deltas, insists that each begins where the last ended."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprob] = []

    def take(self, delivery: Delivery) -> TextDelta | None:
        delta = delivery.pending_delta()
        if delta is not None:
            assert (delta.token_offset, delta.char_offset) == (len(self.ids), len(self.text))
            self.ids += delta.token_ids
            self.text += delta.text
            self.logprobs += delta.logprobs or []
            delivery.mark_sent(delta, now_s=0.0)
        return delta

    def subscribe(self, delivery: Delivery) -> None:
        delivery.subscribe(len(self.ids), len(self.text), now_s=0.0)


def taken(delta: TextDelta | None) -> TextDelta:
    """The delta that must be there."""
    assert delta is not None
    return delta


def read_all(source: Source) -> Reader:
    """The whole text, by a reader who comes when it is finished."""
    delivery, reader = source.open(), Reader()
    delivery.advance(0.0)
    reader.subscribe(delivery)
    reader.take(delivery)
    return reader


def test_tokens_come_as_text_with_their_ids() -> None:
    source, reader = Source(), Reader()
    delivery = source.open()
    reader.subscribe(delivery)
    assert delivery.advance(0.0) == 0
    assert reader.take(delivery) is None
    source.generate([65, 66])
    assert delivery.advance(0.0) == 2
    delta = reader.take(delivery)
    assert delta == TextDelta(b"request-00000000", 0, 0, "AB", [65, 66])
    assert reader.take(delivery) is None


def test_what_the_socket_did_not_take_comes_again_with_what_is_new() -> None:
    source = Source()
    delivery = source.open()
    source.generate([65])
    delivery.advance(0.0)
    first = delivery.pending_delta()
    source.generate([66])
    delivery.advance(0.0)
    second = delivery.pending_delta()
    assert (taken(first).text, taken(second).text) == ("A", "AB")
    assert taken(second).token_ids == [65, 66]


def test_ends_with_the_final_count_of_the_finish_word() -> None:
    source, reader = Source(), Reader()
    delivery = source.open()
    source.generate([65, 66])
    source.finish(FinishReason.STOP)
    source.views.slots.store(SLOT, SlotWord.GENERATED, 1)  # the word after the finish is late
    delivery.advance(0.0)
    assert not delivery.is_finished
    source.views.slots.store(SLOT, SlotWord.GENERATED, 2)
    delivery.advance(0.0)
    assert delivery.is_finished
    assert not delivery.is_delivered
    reader.take(delivery)
    assert delivery.is_delivered
    report = delivery.report()
    assert (report.num_tokens, report.num_chars, report.error) == (2, 2, None)
    assert report.finish_reason == FinishReason.STOP
    assert delivery.report() == report


def test_bytes_of_a_character_that_never_ends_are_sent_at_the_end() -> None:
    half = VOCABULARY.token_bytes.index(b"a\xc3")
    source, reader = Source(), Reader()
    delivery = source.open()
    source.generate([half])
    delivery.advance(0.0)
    assert taken(reader.take(delivery)).text == "a"
    source.finish()
    delivery.advance(0.0)
    assert not delivery.is_delivered
    reader.take(delivery)
    assert reader.text == "a\N{REPLACEMENT CHARACTER}"
    assert delivery.is_delivered
    assert delivery.report().num_chars == len(reader.text)


def test_text_held_back_for_a_stop_string_that_never_ends_is_sent_at_the_end() -> None:
    the = VOCABULARY.token_bytes.index(b" the")
    source, reader = Source(SamplingParams(stop=("he end",))), Reader()
    delivery = source.open()
    source.generate([the])
    delivery.advance(0.0)
    reader.take(delivery)
    assert (reader.text, reader.ids) == (" t", [the])
    source.finish()
    delivery.advance(0.0)
    reader.take(delivery)
    assert (reader.text, reader.ids) == (" the", [the])
    assert delivery.is_delivered


@pytest.mark.parametrize(("is_kept", "text"), [(False, "A t"), (True, "A the")])
def test_a_stop_string_inside_a_token_ends_the_text(is_kept: bool, text: str) -> None:
    there = VOCABULARY.token_bytes.index(b" there")
    params = SamplingParams(stop=("he",), include_stop_str_in_output=is_kept)
    source = Source(params)
    source.generate([65, there, 66])
    delivery, reader = source.open(), Reader()
    delivery.advance(0.0)
    assert source.views.slots.load(SLOT, SlotWord.STOP) == 1 + 2
    source.generate([67])
    delivery.advance(0.0)
    reader.take(delivery)
    assert reader.text == text
    assert reader.ids == [65, there]
    report = delivery.report()
    assert report.finish_reason == FinishReason.STOP_STRING
    assert (report.num_tokens, report.num_chars) == (2, len(text))


def test_a_pattern_across_tokens_ends_the_text() -> None:
    the = VOCABULARY.token_bytes.index(b" the")
    source = Source(SamplingParams(stop_regex=r"e\d+ "))
    source.generate([65, the, *b"12"])
    delivery, reader = source.open(), Reader()
    delivery.advance(0.0)
    reader.take(delivery)
    assert reader.text == "A th"  # what may become a match is held back
    source.generate([*b"3 x"])
    delivery.advance(0.0)
    assert source.views.slots.load(SLOT, SlotWord.STOP) == 1 + 6
    rebuilt, again = source.open(), Reader()
    rebuilt.advance(0.0)
    for one, name in ((delivery, reader), (rebuilt, again)):
        name.take(one)
        assert (name.text, name.ids) == ("A th", [65, the, *b"123 "])
        assert one.report().finish_reason == FinishReason.STOP_STRING


def test_a_pattern_is_not_looked_at_before_the_prompt_is_encoded() -> None:
    source = Source(SamplingParams(stop_regex="(a+)+$"), prompt=())
    delivery = source.open()
    delivery.advance(0.0)
    delivery.close()
    delivery.advance(0.0)
    assert delivery.is_finished


def test_a_stop_string_wins_over_a_finish_word_behind_it() -> None:
    source = Source(SamplingParams(stop=("B",)))
    source.generate([65, 66, 67])
    source.finish(FinishReason.LENGTH)
    delivery = source.open()
    delivery.advance(0.0)
    assert delivery.report().finish_reason == FinishReason.STOP_STRING


def test_log_probabilities_stand_beside_their_tokens() -> None:
    source, reader = Source(SamplingParams(logprobs=1)), Reader()
    delivery = source.open()
    reader.subscribe(delivery)
    piece = VOCABULARY.token_bytes.index("🙂".encode()[:2])
    rest = VOCABULARY.token_bytes.index("🙂".encode()[2:])
    for ids in ([65, piece], [rest], [66]):
        source.generate(ids)
        delivery.advance(0.0)
        delta = reader.take(delivery)
        assert delta is not None
        assert [record.token_id for record in delta.logprobs or []] == delta.token_ids
    assert reader.ids == [65, piece, rest, 66]
    assert reader.text == "A🙂B"
    assert reader.logprobs[0] == TokenLogprob(65, -65.0, [(65, -65.0)])


def test_log_probabilities_that_were_overwritten_are_an_error() -> None:
    source = Source(SamplingParams(logprobs=1))
    delivery = source.open()
    source.generate([65] * (LOGPROB_DEPTH + 1))
    delivery.advance(0.0)
    with pytest.raises(InternalError, match="overwritten"):
        delivery.pending_delta()


def test_a_rebuilt_text_owes_no_log_probabilities_that_the_client_has() -> None:
    source, reader = Source(SamplingParams(logprobs=1)), Reader()
    delivery = source.open()
    for _ in range(3):
        source.generate([65] * LOGPROB_DEPTH)
        delivery.advance(0.0)
        reader.take(delivery)
    rebuilt = source.open()
    rebuilt.advance(0.0)
    reader.subscribe(rebuilt)
    source.generate([66])
    rebuilt.advance(0.0)
    reader.take(rebuilt)
    assert [record.token_id for record in reader.logprobs] == reader.ids


def test_a_text_opened_before_its_prompt_is_encoded_continues_the_prompt() -> None:
    head = VOCABULARY.token_bytes.index("é".encode())
    first, second = VOCABULARY.token_bytes[head]
    source, reader = Source(prompt=()), Reader()
    delivery = source.open()
    reader.subscribe(delivery)
    delivery.advance(0.0)
    source.encode([72, first])
    delivery.advance(0.0)
    source.generate([second, 65])
    delivery.advance(0.0)
    reader.take(delivery)
    assert reader.text == "éA"
    assert reader.ids == [second, 65]


def test_closing_flushes_what_is_generated() -> None:
    the = VOCABULARY.token_bytes.index(b" the")
    source, reader = Source(SamplingParams(stop=("he end",))), Reader()
    delivery = source.open()
    source.generate([65, the])
    delivery.close()
    assert not delivery.is_finished
    delivery.advance(0.0)
    assert delivery.is_finished
    reader.take(delivery)
    assert (reader.text, reader.ids) == ("A the", [65, the])
    assert delivery.report().finish_reason == FinishReason.CANCELLED


def test_closing_without_a_token_reports_an_empty_text() -> None:
    delivery = Source(prompt=()).open()
    delivery.close()
    delivery.advance(0.0)
    report = delivery.report()
    assert delivery.is_delivered
    assert (report.num_tokens, report.num_chars) == (0, 0)


def test_a_row_error_is_reported_typed() -> None:
    source = Source()
    source.generate([65])
    source.finish(FinishReason.ERROR, RowError.INVALID_LOGITS)
    delivery = source.open()
    delivery.advance(0.0)
    report = delivery.report()
    assert report.finish_reason == FinishReason.ERROR
    assert report.error is not None
    assert report.error.code == "invalid_logits"


def test_offsets_outside_the_text_are_brought_inside() -> None:
    source = Source()
    source.generate([65, 66])
    delivery = source.open()
    delivery.advance(0.0)
    delivery.subscribe(-5, -5, now_s=0.0)
    assert taken(delivery.pending_delta()).text == "AB"
    delivery.subscribe(1000, 1000, now_s=0.0)
    assert delivery.pending_delta() is None


def test_a_client_that_has_everything_is_not_idle() -> None:
    source, reader = Source(), Reader()
    delivery = source.open()
    reader.subscribe(delivery)
    delivery.advance(100.0)
    source.generate([65])
    delivery.advance(101.0)
    assert delivery.idle_since_s == 101.0
    source.generate([66])
    delivery.advance(150.0)
    assert delivery.idle_since_s == 101.0
    delivery.mark_sent(taken(delivery.pending_delta()), now_s=151.0)
    assert delivery.idle_since_s == 151.0


@given(
    ids=st.lists(st.integers(0, 511), min_size=1, max_size=60),
    stops=st.lists(
        st.sampled_from(["he", "é", "a\N{REPLACEMENT CHARACTER}", " t", "日"]), max_size=2
    ),
    regex=st.none() | st.sampled_from(["h.{0,3}e", "[^ -~]{2}", r"(?i)\d+ ?t"]),
    seed=st.integers(0, 2**32),
)
def test_rebuilding_at_any_moment_gives_exactly_the_rest(
    ids: list[int], stops: list[str], regex: str | None, seed: int
) -> None:
    dice = random.Random(seed)
    params = SamplingParams(stop=tuple(stops), stop_regex=regex)
    source, whole = Source(params), Source(params)
    whole.generate(ids)
    whole.finish()
    reader, delivery, num_done = Reader(), source.open(), 0
    while num_done < len(ids):
        step = dice.randint(1, 4)
        source.generate(ids[num_done : num_done + step])
        num_done = min(num_done + step, len(ids))
        if num_done == len(ids):
            source.finish()
        if dice.random() < 0.4:
            delivery = source.open()
            delivery.advance(0.0)
            reader.subscribe(delivery)
        delivery.advance(0.0)
        if dice.random() < 0.7:
            reader.take(delivery)
    reader.take(delivery)
    assert delivery.is_delivered
    expected = read_all(whole)
    assert (reader.text, reader.ids) == (expected.text, expected.ids)
    report = delivery.report()
    assert (report.num_tokens, report.num_chars) == (len(reader.ids), len(reader.text))


def test_a_long_rebuilt_text_is_taken_in_slices_with_signs_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "SLICE_TOKENS", 10)
    source = Source()
    source.generate([65] * 35)
    source.finish()
    beats: list[None] = []
    text = Delivery(SLOT, EPOCH, source.views, VOCABULARY, 0.0, beat=lambda: beats.append(None))
    assert text.advance(0.0) == 35
    assert text.is_finished
    assert len(beats) == 3
    text.subscribe(0, 0, now_s=0.0)
    assert taken(text.pending_delta()).token_ids == [65] * 35


@pytest.mark.parametrize(
    ("prompt", "is_kept", "text"),
    [
        (b"ask<think>\n", True, "<think>\nso"),
        (b"ask<think>\n", False, "so"),
        (b"<think></think>", True, "so"),
        (b"", True, "so"),
    ],
)
def test_reasoning_that_the_prompt_opened_is_opened_in_the_text(
    prompt: bytes, is_kept: bool, text: str
) -> None:
    source = Source(SamplingParams(keep_reasoning_marks=is_kept), [*prompt] or PROMPT)
    source.generate([*b"s"])
    delivery, reader = source.open(), Reader()
    reader.subscribe(delivery)
    delivery.advance(0.0)
    reader.take(delivery)
    source.generate([*b"o"])
    source.finish()
    again = source.open()  # a replacement, which begins where the client stands
    again.advance(0.0)
    reader.subscribe(again)
    reader.take(again)
    assert (reader.text, reader.ids) == (text, [*b"so"])
    assert again.report().num_chars == len(text)


def test_a_text_is_still_until_it_has_news_or_something_to_send() -> None:
    source, reader = Source(), Reader()
    delivery = source.open()
    reader.subscribe(delivery)
    assert delivery.is_still()
    source.generate([65])
    assert not delivery.is_still()
    delivery.advance(0.0)
    assert not delivery.is_still()  # the client has not got it
    reader.take(delivery)
    assert delivery.is_still()
    source.finish()
    assert not delivery.is_still()


def test_a_text_that_is_closed_is_not_still() -> None:
    delivery = Source().open()
    delivery.close()
    assert not delivery.is_still()
