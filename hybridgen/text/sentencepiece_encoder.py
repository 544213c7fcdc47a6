"""SentencePiece through its library: a ``.model`` file, or a proto rebuilt from GGUF's lists."""

from __future__ import annotations

from collections.abc import Sequence

from sentencepiece import SentencePieceProcessor

from hybridgen.errors import BadModelFile
from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.sentencepiece_proto import (
    SentencePieceModel,
    parse_model,
    serialize_bpe_model,
    with_controls,
)
from hybridgen.text.special_tokens import SpecialToken, SpecialTokens
from hybridgen.text.vocabulary import token_types

_REMEDY = "Fetch or convert the model again"


class SentencePieceEncoder:
    """Plain text → ids. The library never finds control pieces in text.

    Args:
        model: serialized.
        added: tokens that it lacks and that text may hold; they are found before anything else.

    Raises:
        BadModelFile: the library refuses the model.
    """

    def __init__(self, model: bytes, added: Sequence[SpecialToken] = ()) -> None:
        self._added = SpecialTokens(added)
        self._processor = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise BadModelFile(
                f"the SentencePiece model is refused by its library: {error}",
                field="tokenizer.model",
                remedy=_REMEDY,
            ) from error

    def encode_run(self, text: str, is_first: bool) -> list[int]:  # noqa: ARG002 - the prefix
        # space is put before every run, as llama.cpp and the original Llama code do
        """Ids of a run of plain text."""
        ids: list[int] = []
        for part in self._added.split(text):
            ids += [part] if isinstance(part, int) else self._processor.EncodeAsIds(part)
        return ids


def build_sentencepiece_encoder(spec: TokenizerSpec) -> SentencePieceEncoder:
    """Build from the spec's file or lists.

    Raises:
        BadModelFile: damaged file or lists.
    """
    if spec.has_source:
        content = spec.read_source()
        num_pieces = len(parse_model(content).pieces)  # says what is wrong with a damaged file
        # Gemma's marks of turns are user-defined pieces that its settings call special.
        controls = {token.id for token in spec.added_tokens if token.special}
        content = with_controls(content, controls) if controls else content
        added = [
            SpecialToken(token.content, token.id, token.lstrip, token.rstrip)
            for token in spec.added_tokens
            if token.id >= num_pieces and not token.special
        ]
        return SentencePieceEncoder(content, added)
    types = token_types(spec)
    if len(spec.scores) != len(spec.tokens):
        raise BadModelFile(
            "the tokenizer's lists do not fit each other",
            field="tokenizer (scores)",
            value=f"{len(spec.tokens)} tokens, {len(spec.scores)} scores",
            limit="as many scores as tokens",
            remedy=_REMEDY,
        )
    unk_id = _unknown_id(spec, types)
    # Only one may be unknown to the library; GGUF calls padding so as well.
    types = [TokenType.CONTROL if kind == TokenType.UNKNOWN else kind for kind in types]
    types[unk_id] = TokenType.UNKNOWN
    # Where text is looked for as it stands, GGUF writes spaces as they are.
    pieces = [
        piece.replace(" ", "▁") if kind == TokenType.USER_DEFINED else piece
        for piece, kind in zip(spec.tokens, types, strict=True)
    ]
    model = SentencePieceModel(pieces, spec.scores, types, spec.add_space_prefix, False)
    return SentencePieceEncoder(serialize_bpe_model(model, unk_id))


def _unknown_id(spec: TokenizerSpec, types: list[int]) -> int:
    if spec.unk_id is not None and 0 <= spec.unk_id < len(types):
        return spec.unk_id
    unknown = [token_id for token_id, kind in enumerate(types) if kind == TokenType.UNKNOWN]
    if len(unknown) != 1:
        raise BadModelFile(
            "a SentencePiece vocabulary needs one unknown token",
            field="tokenizer (unknown token)",
            value=len(unknown),
            limit=1,
            remedy=_REMEDY,
        )
    return unknown[0]
