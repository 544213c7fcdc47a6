"""Every family's tokenizer, from every kind of file, beside the library that defines it.

``NUM_TOKENIZER_LINES`` says how many lines are encoded; ``make test-vocabularies`` takes all.
"""

from __future__ import annotations

import os
import random
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as LibraryTokenizer

from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.text.text_stream import TextStream
from hybridgen.text.tokenizer import Tokenizer, build_tokenizer
from tests.text.family_vocabulary import (
    BYTE_LEVEL,
    CONTROLS,
    SENTENCEPIECE,
    Files,
    byte_level_files,
    sentencepiece_files,
)
from tests.text.mixed_lines import mixed_lines
from tests.text.tiny_sentencepiece import train_sentencepiece

NUM_LINES = int(os.environ.get("NUM_TOKENIZER_LINES", "1000"))
LINES = mixed_lines(NUM_LINES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module", params=BYTE_LEVEL)
def byte_level(request: pytest.FixtureRequest, folder: Path) -> Files:
    return byte_level_files(folder, request.param)


@pytest.fixture(scope="module", params=SENTENCEPIECE)
def pieces(request: pytest.FixtureRequest, folder: Path) -> Files:
    return sentencepiece_files(folder, request.param)


def oracle(path: Path, *, finds_special: bool = False) -> Callable[[str], list[int]]:
    """The library on a tokenizer.json."""
    library = LibraryTokenizer.from_file(str(path))
    library.encode_special_tokens = not finds_special

    def encode(line: str) -> list[int]:
        ids: list[int] = library.encode(line, add_special_tokens=False).ids
        return ids

    return encode


def built(files: Files) -> dict[str, Tokenizer]:
    return {kind: build_tokenizer(spec) for kind, spec in files.specs().items()}


def test_byte_level_vocabularies_encode_as_their_library_does(byte_level: Files) -> None:
    encode = oracle(byte_level.json)
    expected = [encode(line) for line in LINES]
    for kind, tokenizer in built(byte_level).items():
        assert [tokenizer.encode(line) for line in LINES] == expected, kind


def test_special_tokens_of_a_template_are_found_as_the_library_finds_them(
    byte_level: Files,
) -> None:
    encode = oracle(byte_level.json, finds_special=True)
    lines = [line for line in LINES if any(text in line for text in CONTROLS)]
    assert len(lines) > NUM_LINES // 100
    for kind, tokenizer in built(byte_level).items():
        assert [tokenizer.encode(line, allow_special=True) for line in lines] == [
            encode(line) for line in lines
        ], kind
        assert not any(tokenizer.special_ids & set(tokenizer.encode(line)) for line in lines)


def test_byte_level_ids_decode_to_the_line(byte_level: Files) -> None:
    is_composed = byte_level.json.stem == "qwen2"
    for tokenizer in built(byte_level).values():
        for line in LINES:
            expected = unicodedata.normalize("NFC", line) if is_composed else line
            assert tokenizer.decode(tokenizer.encode(line)) == expected


def test_sentencepiece_vocabularies_encode_as_their_library_does(pieces: Files) -> None:
    library = SentencePieceProcessor(model_file=str(pieces.model))
    expected = {"model": [library.encode(line) for line in LINES]}
    expected["gguf"] = expected["model"]
    encode = oracle(pieces.json)
    expected["json"] = [encode(line) for line in LINES]
    for kind, tokenizer in built(pieces).items():
        assert [tokenizer.encode(line) for line in LINES] == expected[kind], kind


def test_all_three_files_of_a_sentencepiece_vocabulary_give_the_same_ids(pieces: Files) -> None:
    # The two libraries read the character that stands for a space differently.
    lines = [line for line in LINES if "▁" not in line]
    first, *others = ([one.encode(line) for line in lines] for one in built(pieces).values())
    assert all(ids == first for ids in others)


def test_sentencepiece_ids_decode_to_the_line(pieces: Files) -> None:
    for tokenizer in built(pieces).values():
        for line in LINES:
            assert tokenizer.decode(tokenizer.encode(line)) == line.replace("▁", " ")


def test_streams_of_byte_level_ids_give_the_same_text_in_any_pieces(byte_level: Files) -> None:
    _check_streams(built(byte_level)["gguf"])


def test_streams_of_sentencepiece_ids_give_the_same_text_in_any_pieces(pieces: Files) -> None:
    _check_streams(built(pieces)["gguf"])


def _check_streams(tokenizer: Tokenizer) -> None:
    source = random.Random(1)
    for line in LINES:
        ids = tokenizer.encode(line, allow_special=True)
        stream = TextStream(tokenizer.vocabulary)
        released = [stream.push(piece) for piece in _cut(ids, source)] + [stream.finish()]
        text = "".join(one.text for one in released if one is not None)
        assert text == tokenizer.decode(ids)


def _cut(ids: list[int], source: random.Random) -> Iterator[list[int]]:
    start = 0
    while start < len(ids):
        stop = start + source.randint(1, 4)
        yield ids[start:stop]
        start = stop


def test_the_embedded_vocabulary_encodes_as_its_library_does(
    smollm2_spec: TokenizerSpec, smollm2: Tokenizer
) -> None:
    """Rebuilt from the lists with the pre-tokenizer of its published tokenizer.json."""
    from tokenizers import models

    vocabulary = {token: token_id for token_id, token in enumerate(smollm2_spec.tokens)}
    merges = [(left, right) for left, right in (one.split(" ") for one in smollm2_spec.merges)]
    library = LibraryTokenizer(models.BPE(vocabulary, merges))
    library.pre_tokenizer = BYTE_LEVEL["smollm"]
    for line in LINES:
        assert smollm2.encode(line) == library.encode(line).ids


def test_a_unigram_model_encodes_as_its_library_does(folder: Path) -> None:
    path = train_sentencepiece(
        folder, model_type="unigram", vocab_size=350, normalization_rule_name="nmt_nfkc",
        remove_extra_whitespaces=True,
    )  # fmt: skip
    library = SentencePieceProcessor(model_file=str(path))
    ours = build_tokenizer(TokenizerSpec(kind="sentencepiece", source_file=str(path)))
    assert [ours.encode(line) for line in LINES] == [library.encode(line) for line in LINES]
