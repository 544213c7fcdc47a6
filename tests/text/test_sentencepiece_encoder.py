from __future__ import annotations

import math
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from hybridgen.errors import BadModelFile
from hybridgen.formats.tokenizer_spec import AddedToken, TokenizerSpec, TokenType
from hybridgen.text.sentencepiece_proto import parse_model, serialize_bpe_model, with_controls
from hybridgen.text.tokenizer import Tokenizer, build_tokenizer
from tests.text.tiny_sentencepiece import train_sentencepiece

TEXTS = st.text(st.sampled_from("the quickbrown日本é🙂\n<s>\t ▁\0"), max_size=30)


def _spec_of_lists(path: Path) -> TokenizerSpec:
    model = parse_model(path.read_bytes())
    return TokenizerSpec(
        kind="sentencepiece",
        tokens=model.pieces,
        scores=model.scores,
        token_types=model.types,
        add_space_prefix=model.has_dummy_prefix,
    )


@pytest.fixture(scope="session")
def from_file(sentencepiece_file: Path) -> Tokenizer:
    return build_tokenizer(TokenizerSpec(kind="sentencepiece", source_file=str(sentencepiece_file)))


@pytest.fixture(scope="session")
def from_lists(sentencepiece_file: Path) -> Tokenizer:
    return build_tokenizer(_spec_of_lists(sentencepiece_file))


@pytest.fixture(scope="session")
def library(sentencepiece_file: Path) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_file=str(sentencepiece_file))


@given(TEXTS)
def test_file_and_rebuilt_vocabulary_encode_as_the_library_does(
    from_file: Tokenizer, from_lists: Tokenizer, library: SentencePieceProcessor, text: str
) -> None:
    expected = library.encode(text)
    assert from_file.encode(text) == expected
    assert from_lists.encode(text) == expected
    assert from_file.decode(expected) == text.replace("▁", " ")


@given(st.lists(st.integers(1, 399), max_size=12))
def test_ids_decode_as_the_library_does(
    from_file: Tokenizer, library: SentencePieceProcessor, ids: list[int]
) -> None:
    def one_mark(text: str) -> str:  # the library marks each bad byte, Python each bad sequence
        return re.sub("\ufffd+", "\ufffd", text)

    ids = [one for one in ids if one < from_file.vocab_size]
    assert one_mark(from_file.decode(ids)) == one_mark(library.decode(ids))


def test_control_pieces_in_text_stay_text(from_file: Tokenizer) -> None:
    assert from_file.special_ids == {0, 1, 2}
    assert not from_file.special_ids & set(from_file.encode("<s>hello</s>"))
    ids = from_file.encode("<s>hello</s>", allow_special=True)
    assert (ids[0], ids[-1]) == (1, 2)
    assert from_file.decode(ids) == "hello"


@settings(max_examples=20)
@given(st.text(st.sampled_from("the fox "), max_size=20))
def test_model_that_removes_extra_spaces_is_followed(
    unigram: tuple[Tokenizer, SentencePieceProcessor], text: str
) -> None:
    tokenizer, library = unigram
    ids = library.encode(text)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == library.decode(ids)


@pytest.fixture(scope="session")
def unigram(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Tokenizer, SentencePieceProcessor]:
    path = train_sentencepiece(
        tmp_path_factory.mktemp("unigram"),
        model_type="unigram",
        vocab_size=350,
        remove_extra_whitespaces=True,
    )
    spec = TokenizerSpec(kind="sentencepiece", source_file=str(path))
    return build_tokenizer(spec), SentencePieceProcessor(model_file=str(path))


def test_rewritten_model_reads_as_it_was(sentencepiece_file: Path) -> None:
    model = parse_model(sentencepiece_file.read_bytes())
    again = parse_model(serialize_bpe_model(model, 0))
    assert again == model
    assert (model.has_dummy_prefix, model.removes_extra_spaces) == (True, False)
    assert model.types.count(TokenType.BYTE) == 256


def test_pieces_that_the_settings_call_special_are_not_found_in_text(tmp_path: Path) -> None:
    path = train_sentencepiece(tmp_path, user_defined_symbols=["<turn>", "<td>"])
    turn = parse_model(path.read_bytes()).pieces.index("<turn>")
    special = AddedToken(turn, "<turn>", special=True)
    spec = TokenizerSpec(kind="sentencepiece", source_file=str(path), added_tokens=[special])
    tokenizer = build_tokenizer(spec)
    assert turn not in tokenizer.encode("<turn>hello")
    assert turn + 1 in tokenizer.encode("<td>hello")
    assert tokenizer.encode("<turn>hello", allow_special=True) == [turn, *tokenizer.encode("hello")]


@pytest.mark.parametrize("token_id", [-1, 10**12])
def test_added_tokens_outside_the_vocabulary_are_a_bad_model_file(
    sentencepiece_file: Path, token_id: int
) -> None:
    added = [AddedToken(token_id, "<x>")]
    path = str(sentencepiece_file)
    with pytest.raises(BadModelFile, match="outside the vocabulary"):
        build_tokenizer(TokenizerSpec(kind="sentencepiece", source_file=path, added_tokens=added))


@given(st.sets(st.integers(0, 450), max_size=5))
def test_pieces_made_control_leave_the_rest_of_a_model_alone(
    sentencepiece_file: Path, ids: set[int]
) -> None:
    data = sentencepiece_file.read_bytes()
    before, after = parse_model(data), parse_model(with_controls(data, ids))
    types = [3 if one in ids else kind for one, kind in enumerate(before.types)]
    assert after == before._replace(types=types)
    assert with_controls(data, ()) == data


@given(st.binary(max_size=200))
def test_garbage_is_a_bad_model_file(data: bytes) -> None:
    with pytest.raises(BadModelFile):
        parse_model(data[:1] + b"\xff" + data)


@pytest.mark.parametrize(
    "score",
    [
        b"\x11" + struct.pack("<d", 1.0),
        b"\x12\x01x",
        b"\x15" + struct.pack("<f", math.nan),
        b"\x15" + struct.pack("<f", -math.inf),
    ],
)
def test_a_score_that_is_no_number_is_a_bad_model_file(score: bytes) -> None:
    piece = b"\x0a\x01a" + score
    with pytest.raises(BadModelFile, match="score"):
        parse_model(b"\x0a" + bytes([len(piece)]) + piece)


def test_truncated_file_is_a_bad_model_file(sentencepiece_file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "tokenizer.model"
    damaged.write_bytes(sentencepiece_file.read_bytes()[:1001])
    for path in (damaged, tmp_path / "missing.model"):
        with pytest.raises(BadModelFile):
            build_tokenizer(TokenizerSpec(kind="sentencepiece", source_file=str(path)))


def test_lists_that_do_not_fit_are_bad_model_files(sentencepiece_file: Path) -> None:
    import msgspec

    spec = _spec_of_lists(sentencepiece_file)
    for changes in (
        {"scores": spec.scores[:-1]},
        {"token_types": spec.token_types[:-1]},
        {"token_types": [int(TokenType.NORMAL)] * len(spec.tokens)},
        {"tokens": [spec.tokens[0]] * len(spec.tokens)},
    ):
        with pytest.raises(BadModelFile):
            build_tokenizer(msgspec.structs.replace(spec, **changes))
