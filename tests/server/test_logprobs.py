from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.request import TokenLogprob
from hybridgen.server.logprobs import LEAST_LOGPROB, chat_logprobs, completion_logprobs
from hybridgen.text.vocabulary import Vocabulary
from tests.server.vocabulary import IDS, LOGPROBS, TEXT, VOCABULARY


def test_a_chat_names_each_token_with_its_bytes() -> None:
    content = chat_logprobs(LOGPROBS, VOCABULARY).content
    assert [token.token for token in content] == ["Hello", " wörld", "\\xe8\\xaa", "\\x9e", "<end>"]
    assert bytes(content[2].bytes) == b"\xe8\xaa"
    assert [top.token for top in content[0].top_logprobs] == ["Hello", " wörld"]
    assert [top.logprob for top in content[0].top_logprobs] == [-0.25, -2.0]
    assert content[3].top_logprobs == []


def test_a_completion_has_four_columns_of_one_length() -> None:
    columns = completion_logprobs(LOGPROBS, VOCABULARY, TEXT, 0)
    assert columns.tokens == ["Hello", " wörld", "bytes:\\xe8\\xaa", "bytes:\\x9e", "<end>"]
    assert columns.text_offset == [0, 5, 11, 11, 12]
    assert columns.token_logprobs[:2] == [-0.25, -3.0]
    assert columns.top_logprobs[0] == {"Hello": -0.25, " wörld": -2.0}


def test_the_chosen_token_is_among_the_best_of_a_completion_and_one_text_stands_once() -> None:
    columns = completion_logprobs(LOGPROBS, VOCABULARY, TEXT, 0)
    assert columns.top_logprobs[1] == {"Hello": -0.5, " wörld": -3.0}
    assert columns.top_logprobs[3] == {"bytes:\\x9e": -0.0}


def test_minus_infinity_becomes_a_number_that_json_has() -> None:
    columns = completion_logprobs(LOGPROBS, VOCABULARY, TEXT, 0)
    assert columns.token_logprobs[2] == LEAST_LOGPROB
    chat = chat_logprobs(LOGPROBS, VOCABULARY)
    assert chat.content[2].logprob == LEAST_LOGPROB
    assert chat.content[2].top_logprobs[0].logprob == LEAST_LOGPROB
    assert json.loads(msgspec.json.encode(chat))["content"][2]["logprob"] == LEAST_LOGPROB


def test_offsets_count_on_from_the_text_before() -> None:
    assert completion_logprobs(LOGPROBS[1:2], VOCABULARY, " wörld", 5).text_offset == [5]


def test_offsets_stay_inside_a_text_that_lost_its_ends() -> None:
    vocabulary = Vocabulary([b" Hi", b" there", b" STOP"])
    tokens = [TokenLogprob(token_id, -1.0) for token_id in (0, 1, 2, 2)]
    columns = completion_logprobs(tokens, vocabulary, "Hi there", 0)
    assert columns.text_offset == [0, 2, 8, 8]


@given(pieces=st.lists(st.binary(max_size=4), max_size=12))
def test_each_token_begins_where_the_text_before_it_ends(pieces: list[bytes]) -> None:
    vocabulary = Vocabulary(pieces or [b""])
    tokens = [TokenLogprob(token_id, -1.0) for token_id in range(len(pieces))]
    text = b"".join(pieces).decode("utf-8", "replace")
    offsets = completion_logprobs(tokens, vocabulary, text, 0).text_offset
    assert len(offsets) == len(pieces)
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) for offset in offsets)
    for index, offset in enumerate(offsets):
        before = b"".join(pieces[:index])
        if before.decode("utf-8", "ignore").encode() == before:
            assert text[:offset] == before.decode()


def test_the_ids_of_the_fixture_make_its_text() -> None:
    assert VOCABULARY.decode(IDS) == TEXT
