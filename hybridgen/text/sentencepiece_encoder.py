"""SentencePiece through its library: a ``.model`` file, or a proto rebuilt from GGUF's lists."""

from __future__ import annotations

from pathlib import Path

from sentencepiece import SentencePieceProcessor

from hybridgen.errors import BadModelFile
from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.sentencepiece_proto import SentencePieceModel, serialize_bpe_model
from hybridgen.text.vocabulary import read_sentencepiece, token_types


class SentencePieceEncoder:
    """Plain text → ids. The library never finds control pieces in text."""

    def __init__(self, model: bytes) -> None:
        self._processor = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise BadModelFile(
                f"the SentencePiece model is refused by its library: {error}",
                remedy="Use an undamaged model file",
            ) from error

    def encode_run(self, text: str, is_first: bool) -> list[int]:  # noqa: ARG002 - the prefix
        # space is put before every run, as llama.cpp and the original Llama code do
        """Ids of a run of plain text."""
        ids: list[int] = self._processor.EncodeAsIds(text)
        return ids


def build_sentencepiece_encoder(spec: TokenizerSpec) -> SentencePieceEncoder:
    """Build from the spec's file or lists.

    Raises:
        BadModelFile: damaged file or lists.
    """
    if spec.source_file is not None:
        path = Path(spec.source_file)
        read_sentencepiece(path)  # says what is wrong with a damaged file, by name
        return SentencePieceEncoder(path.read_bytes())
    types = token_types(spec)
    if len(spec.scores) != len(spec.tokens):
        raise BadModelFile(
            "the tokenizer's lists do not fit each other",
            value=f"{len(spec.tokens)} tokens, {len(spec.scores)} scores",
            limit="as many scores as tokens",
        )
    unknown = [token_id for token_id, kind in enumerate(types) if kind == TokenType.UNKNOWN]
    if len(unknown) != 1:
        raise BadModelFile(
            "a SentencePiece vocabulary needs one unknown token",
            value=len(unknown),
            limit=1,
        )
    model = SentencePieceModel(spec.tokens, spec.scores, types, spec.add_space_prefix, False)
    return SentencePieceEncoder(serialize_bpe_model(model, unknown[0]))
