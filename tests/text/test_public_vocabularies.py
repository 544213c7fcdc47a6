"""The vocabularies of published models, as far as packages carry them: ``make test-vocabularies``.

``PUBLIC_VOCABULARIES`` names a folder with llama.cpp's ``ggml-vocab-*.gguf`` and their vectors
(``.inp``, ``.out``), Mistral's ``tekken_*.json`` and its SentencePiece models.
"""

from __future__ import annotations

import base64
import json
import os
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sentencepiece import SentencePieceProcessor

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_tokenizer import tokenizer_spec
from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.byte_alphabet import BYTE_TO_CHAR
from hybridgen.text.sentencepiece_proto import parse_model
from hybridgen.text.text_stream import TextStream
from hybridgen.text.tokenizer import build_tokenizer
from tests.text.mixed_lines import mixed_lines
from tests.text.reference_bpe import ReferenceBpe
from tests.text.reference_sentencepiece import ReferenceSentencePiece

FOLDER = os.environ.get("PUBLIC_VOCABULARIES", "")
LINES = mixed_lines(int(os.environ.get("NUM_TOKENIZER_LINES", "1000")))
#: What a character is that Unicode has not named, every library of patterns sees in its own way.
NAMED_LINES = [line for line in LINES if "Cn" not in map(unicodedata.category, line)]
MARK = "\n__ggml_vocab_test__\n"
#: Vocabularies of families that are not served.
REFUSED = ("bert", "deepseek", "falcon", "gemma-4", "nomic", "qwen35")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not FOLDER, reason="PUBLIC_VOCABULARIES names no folder"),
]


def found(pattern: str) -> list[Any]:
    paths = sorted(Path(FOLDER).rglob(pattern)) if FOLDER else []
    return [pytest.param(path, id=path.stem) for path in paths]


def spec_of(path: Path) -> TokenizerSpec:
    with GgufFile(path) as gguf:
        if any(name in path.stem for name in REFUSED):
            with pytest.raises(UnsupportedModel):
                build_tokenizer(tokenizer_spec(gguf))
            pytest.skip("refused by name")
        return tokenizer_spec(gguf)


@pytest.mark.parametrize("path", found("ggml-vocab-*.gguf"))
def test_vectors_of_llama_cpp(path: Path) -> None:
    tokenizer = build_tokenizer(spec_of(path))
    texts = path.with_name(path.name + ".inp")
    if not texts.exists():
        pytest.skip("it has no vectors")
    ids = path.with_name(path.name + ".out").read_text().split("\n")
    with texts.open(encoding="utf-8", newline="") as file:
        lines = file.read().split(MARK)
    for line, expected in zip(lines, ids, strict=True):
        assert tokenizer.encode(line) == [int(one) for one in expected.split()], line


@pytest.mark.parametrize("path", found("ggml-vocab-*.gguf"))
def test_mixed_lines_by_the_definitions(path: Path) -> None:
    spec = spec_of(path)
    # What is found before anything else is no matter of the definitions.
    found_first = _user_defined(spec)
    lines = [line for line in NAMED_LINES if not any(text in line for text in found_first)]
    reference = (ReferenceBpe if spec.kind == "bpe" else ReferenceSentencePiece)(spec)
    _check_lines(spec, lines, reference)


def _user_defined(spec: TokenizerSpec) -> list[str]:
    types = spec.token_types
    return [
        token
        for token, kind in zip(spec.tokens, types, strict=bool(types))
        if kind == TokenType.USER_DEFINED
    ]


def _check_lines(spec: TokenizerSpec, lines: list[str], reference: Any) -> None:
    tokenizer = build_tokenizer(spec)
    wrong = [line for line in lines if tokenizer.encode(line) != reference.encode(line)]
    assert not wrong
    for line in lines:
        ids = tokenizer.encode(line)
        stream = TextStream(tokenizer.vocabulary)
        released = [stream.push([token_id]) for token_id in ids] + [stream.finish()]
        assert "".join(one.text for one in released if one) == tokenizer.decode(ids)


@pytest.mark.parametrize("path", found("*.model*"))
def test_mistrals_sentencepiece_from_its_file_and_from_lists(path: Path) -> None:
    library = SentencePieceProcessor(model_file=str(path))
    model = parse_model(path.read_bytes())
    from_file = TokenizerSpec(kind="sentencepiece", source_file=str(path))
    from_lists = TokenizerSpec(
        kind="sentencepiece",
        tokens=model.pieces,
        scores=model.scores,
        token_types=model.types,
        unk_id=library.unk_id(),
        add_space_prefix=model.has_dummy_prefix,
    )
    for spec in (from_file, from_lists):
        tokenizer = build_tokenizer(spec)
        assert [tokenizer.encode(line) for line in LINES] == [
            library.encode(line) for line in LINES
        ]
        for line in LINES:
            assert tokenizer.decode(library.encode(line)) == line.replace("▁", " ")


@pytest.mark.parametrize("path", found("tekken_*.json"))
def test_tekken_by_the_ranks_of_its_file(path: Path) -> None:
    content = json.loads(path.read_bytes())
    num_special = content["config"]["default_num_special_tokens"]
    size = content["config"]["default_vocab_size"] - num_special
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in content["vocab"][:size]}
    spec = _as_lists(ranks, num_special)
    assert spec.tokens[num_special] == BYTE_TO_CHAR[0]
    reference = _ByRank(ranks, num_special, spec)
    _check_lines(spec, NAMED_LINES, reference)


def _as_lists(ranks: dict[bytes, int], num_special: int) -> TokenizerSpec:
    """As converters write it: the merges of a token are all pairs of tokens that join to it."""
    texts = {token: "".join(BYTE_TO_CHAR[value] for value in token) for token in ranks}
    merges = [
        f"{texts[token[:cut]]} {texts[token[cut:]]}"
        for token in ranks
        for cut in sorted(
            (cut for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks),
            key=lambda cut: (ranks[token[:cut]], ranks[token[cut:]]),
        )
    ]
    specials = [f"<SPECIAL_{index}>" for index in range(num_special)]
    types = [TokenType.CONTROL] * num_special + [TokenType.NORMAL] * len(texts)
    return TokenizerSpec(
        kind="bpe",
        tokens=[*specials, *texts.values()],
        token_types=[*map(int, types)],
        merges=merges,
        pre_tokenizer="tekken",
    )


class _ByRank(ReferenceBpe):
    """Neighbours that make the token of the lowest rank are joined first."""

    def __init__(self, ranks: dict[bytes, int], num_special: int, spec: TokenizerSpec) -> None:
        super().__init__(msgspec.structs.replace(spec, merges=[]))
        self._token_ranks, self._num_special = ranks, num_special

    def _word_ids(self, word: str) -> list[int]:
        ranks, data = self._token_ranks, word.encode()
        parts = [data[index : index + 1] for index in range(len(data))]
        if data in ranks:
            parts = [data]
        while len(parts) > 1:
            best = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
            if min(best) == len(ranks):
                break
            index = best.index(min(best))
            parts[index : index + 2] = [parts[index] + parts[index + 1]]
        return [self._num_special + ranks[part] for part in parts]
