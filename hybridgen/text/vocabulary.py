"""A vocabulary: the bytes of every token. All that is needed to turn ids into text.

Importing this module and building a vocabulary loads neither ``tokenizers`` nor
``sentencepiece``: a detokenizer needs no encoder.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence

from hybridgen.errors import BadModelFile, InvalidRequest, UnsupportedModel
from hybridgen.formats.tokenizer_spec import AddedToken, TokenizerSpec, TokenType
from hybridgen.text.byte_alphabet import token_to_bytes
from hybridgen.text.reasoning import REASONING_MARKS
from hybridgen.text.sentencepiece_proto import SentencePieceModel, parse_model
from hybridgen.text.special_tokens import SpecialToken, SpecialTokens
from hybridgen.text.tokenizer_json import TokenizerJson, read_tokenizer_json
from hybridgen.text.tool_calls.registry import TOOL_MARKS

_TOOL_MARKS = frozenset(mark.encode() for mark in TOOL_MARKS)
_REASONING_MARKS = frozenset(mark.encode() for mark in REASONING_MARKS)
_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
_UNDEFINED = 0  # a type that GGUF files may give, and that means nothing
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class LeadingSpace(enum.Enum):
    """What happens to spaces at the very start of a text."""

    KEEP = "keep"
    STRIP_ONE = "strip one"  # SentencePiece: the space that was put before the first word
    STRIP_ALL = "strip all"  # SentencePiece with remove_extra_whitespaces

    @property
    def is_greedy(self) -> bool:
        """Whether more than one space may go."""
        return self is LeadingSpace.STRIP_ALL

    def strip(self, data: bytes) -> bytes:
        """``data``, the first bytes of a text, without the spaces that do not belong to it."""
        if self is LeadingSpace.STRIP_ALL:
            return data.lstrip(b" ")
        return data.removeprefix(b" ") if self is LeadingSpace.STRIP_ONE else data


class Vocabulary:
    """Bytes, special ids and the leading-space rule of a tokenizer.

    Args:
        token_bytes: bytes of token i; UTF-8 characters may be split over tokens.
        specials: the control tokens.
        leading_space: the rule for a text's first bytes.
        vocab_size: rows of the model's embedding; ids beyond ``token_bytes`` have no text.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        specials: Sequence[SpecialToken] = (),
        leading_space: LeadingSpace = LeadingSpace.KEEP,
        vocab_size: int = 0,
    ) -> None:
        self.vocab_size = max(vocab_size, len(token_bytes))
        self.token_bytes: list[bytes] = [*token_bytes]
        self.token_bytes += [b""] * (self.vocab_size - len(token_bytes))
        self.special_ids: frozenset[int] = frozenset(token.token_id for token in specials)
        self.specials = SpecialTokens(specials)
        self.leading_space = leading_space
        self._visible: dict[frozenset[bytes], list[bytes]] = {}
        self._texts: dict[frozenset[bytes] | None, list[str | None]] = {}

    def visible_bytes(
        self, skip_special: bool, kept_marks: frozenset[bytes] = frozenset()
    ) -> list[bytes]:
        """Bytes that each token adds to a text; shared by all texts, not to be changed.

        Args:
            skip_special: special tokens add none.
            kept_marks: but these do (from ``kept_marks``).
        """
        if not skip_special:
            return self.token_bytes
        if kept_marks not in self._visible:
            visible = self.token_bytes.copy()
            for token_id in self.special_ids:
                if visible[token_id] not in kept_marks:
                    visible[token_id] = b""
            self._visible[kept_marks] = visible
        return self._visible[kept_marks]

    def visible_texts(
        self, skip_special: bool, kept_marks: frozenset[bytes] = frozenset()
    ) -> list[str | None]:
        """The same as text; ``None`` where a token is not whole characters."""
        wanted = kept_marks if skip_special else None
        if wanted not in self._texts:
            visible = self.visible_bytes(skip_special, kept_marks)
            self._texts[wanted] = [_whole(data) for data in visible]
        return self._texts[wanted]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        Raises:
            InvalidRequest: for an id outside the vocabulary.
        """
        visible = self.visible_bytes(skip_special)
        ids = self.check_ids(ids)
        data = b"".join([visible[token_id] for token_id in ids])
        return self.leading_space.strip(data).decode("utf-8", "replace")

    def check_ids(self, ids: Iterable[int]) -> list[int]:
        """``ids`` as a list.

        Raises:
            InvalidRequest: for an id outside the vocabulary.
        """
        checked = [*ids]
        if checked and not (min(checked) >= 0 and max(checked) < self.vocab_size):
            raise InvalidRequest(
                "a token id is outside the vocabulary",
                param="prompt",
                value=next(one for one in checked if not 0 <= one < self.vocab_size),
                limit=f"[0, {self.vocab_size})",
                remedy="Use ids of this model's tokenizer",
            )
        return checked


def kept_marks(tools: bool, reasoning: bool) -> frozenset[bytes]:
    """Texts of special tokens that mark calls of tools, or reasoning, or both."""
    return (_TOOL_MARKS if tools else frozenset()) | (
        _REASONING_MARKS if reasoning else frozenset()
    )


def _whole(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def build_vocabulary(spec: TokenizerSpec) -> Vocabulary:
    """The vocabulary that ``spec`` describes or points to.

    Raises:
        BadModelFile: the file or the lists are damaged. UnsupportedModel: another kind.
    """
    if spec.has_source:
        if spec.kind == "sentencepiece":
            return _from_sentencepiece(parse_model(spec.read_source()), spec)
        if spec.kind == "bpe":
            file = read_tokenizer_json(spec.read_source(), spec.source_name)
            return _from_tokenizer_json(file, spec)
    types = token_types(spec)
    if spec.kind == "sentencepiece":
        model = SentencePieceModel(spec.tokens, spec.scores, types, spec.add_space_prefix, False)
        return _from_sentencepiece(model, spec)
    if spec.kind == "mock":
        try:
            raw = [token.encode("latin-1") for token in spec.tokens]
        except UnicodeEncodeError as error:
            raise BadModelFile(f"a mock token is not latin-1: {error.reason}") from error
    elif spec.kind == "bpe":
        raw = [
            token_to_bytes(token) if kind == TokenType.NORMAL else _utf8(token)
            for token, kind in zip(spec.tokens, types, strict=True)
        ]
    else:
        raise UnsupportedModel("this kind of tokenizer is not implemented", value=spec.kind)
    return Vocabulary(raw, _specials(spec.tokens, types), vocab_size=spec.vocab_size)


def token_types(spec: TokenizerSpec) -> list[int]:
    """Type of each of the spec's tokens.

    Raises:
        BadModelFile: the lists do not have the same length, are empty, or hold an unknown type.
    """
    types = spec.token_types or [int(TokenType.NORMAL)] * len(spec.tokens)
    if not spec.tokens or len(types) != len(spec.tokens):
        raise BadModelFile(
            "the tokenizer's lists do not fit each other",
            field="tokenizer (token types)",
            value=f"{len(spec.tokens)} tokens, {len(types)} types",
            limit="as many types as tokens, at least one",
            remedy="Fetch or convert the model again",
        )
    unknown = {*types} - {_UNDEFINED, *TokenType}
    if unknown:
        raise BadModelFile(
            "the tokenizer has a token of no known type",
            field="tokenizer (token types)",
            value=min(unknown),
            limit=", ".join(str(int(kind)) for kind in TokenType),
            remedy="Fetch or convert the model again",
        )
    return types


def _from_sentencepiece(model: SentencePieceModel, spec: TokenizerSpec) -> Vocabulary:
    raw = [
        _piece_bytes(piece, kind == TokenType.BYTE, kind in _SPECIAL)
        for piece, kind in zip(model.pieces, model.types, strict=True)
    ]
    specials = {token.token_id: token for token in _specials(model.pieces, model.types)}
    num_ids = max(spec.vocab_size, len(raw))
    for added in spec.added_tokens:
        if not 0 <= added.id < num_ids:
            raise BadModelFile(
                "an added token is outside the vocabulary", value=added.id, limit=f"[0, {num_ids})"
            )
        raw += [b""] * (added.id + 1 - len(raw))
        raw[added.id] = _utf8(added.content)
        if added.special:
            specials[added.id] = _special(added)
    rule = LeadingSpace.STRIP_ONE if model.has_dummy_prefix else LeadingSpace.KEEP
    if model.removes_extra_spaces:
        rule = LeadingSpace.STRIP_ALL
    return Vocabulary(raw, [*specials.values()], rule, spec.vocab_size)


def _from_tokenizer_json(file: TokenizerJson, spec: TokenizerSpec) -> Vocabulary:
    if file.is_byte_level:
        raw = [token_to_bytes(token) for token in file.tokens]
    else:
        raw = [_piece_bytes(token, file.has_byte_fallback, False) for token in file.tokens]
    for added in file.added_tokens:
        # Gemma's runs of spaces are added tokens, written as its other tokens are.
        is_text = file.is_byte_level or added.special
        raw[added.id] = _utf8(added.content if is_text else added.content.replace("▁", " "))
    specials = [_special(token) for token in file.added_tokens if token.special]
    rule = LeadingSpace.STRIP_ONE if file.strips_leading_space else LeadingSpace.KEEP
    return Vocabulary(raw, specials, rule, spec.vocab_size)


def _specials(tokens: Sequence[str], types: Sequence[int]) -> list[SpecialToken]:
    return [
        SpecialToken(token, token_id)
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in _SPECIAL
    ]


def _special(token: AddedToken) -> SpecialToken:
    return SpecialToken(token.content, token.id, token.lstrip, token.rstrip)


def _piece_bytes(piece: str, may_be_byte: bool, is_special: bool) -> bytes:
    if may_be_byte and (match := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    return _utf8(piece if is_special else piece.replace("▁", " "))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
