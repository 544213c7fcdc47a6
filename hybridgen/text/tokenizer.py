"""One interface to every tokenizer: text ↔ ids, with special tokens kept apart from text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from hybridgen.errors import InvalidRequest
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.text.special_tokens import SpecialTokens
from hybridgen.text.vocabulary import Vocabulary, build_vocabulary

#: Chat templates write the same few runs around every message.
MAX_KEPT_RUNS, MAX_KEPT_CHARS = 256, 256


class Encoder(Protocol):
    """What a kind of tokenizer must bring: ids of plain text, special tokens unknown to it."""

    def encode_run(self, text: str, is_first: bool) -> list[int]:
        """Ids of a run of text; ``is_first``: nothing of the prompt stands before it."""
        ...


class Tokenizer:
    """An encoder and its vocabulary.

    Attributes:
        vocabulary: what detokenizing needs; ``token_bytes``, ``special_ids`` and ``vocab_size``
            are its.
    """

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary) -> None:
        self._encoder = encoder
        self._short_run = lru_cache(MAX_KEPT_RUNS)(encoder.encode_run)
        self.vocabulary = vocabulary
        self.token_bytes: list[bytes] = vocabulary.token_bytes
        self.special_ids: frozenset[int] = vocabulary.special_ids
        self.vocab_size: int = vocabulary.vocab_size
        self.specials: SpecialTokens = vocabulary.specials

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of ``text``; special-token text becomes special ids only with ``allow_special``.

        Raises:
            InvalidRequest: the text holds a lone surrogate.
        """
        check_text(text)
        return self.encode_parts(self.specials.split(text) if allow_special else [text])

    def encode_parts(self, parts: Iterable[int | str]) -> list[int]:
        """Ids of special ids and runs of plain text, in order."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            elif part:
                is_short = len(part) <= MAX_KEPT_CHARS
                ids += (self._short_run if is_short else self._encoder.encode_run)(part, not ids)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        Raises:
            InvalidRequest: for an id outside the vocabulary.
        """
        return self.vocabulary.decode(ids, skip_special)


class ByteEncoder:
    """The mock model's encoder: id = byte."""

    def encode_run(self, text: str, is_first: bool) -> list[int]:  # noqa: ARG002 - no state
        """The text's UTF-8 bytes.

        Raises:
            InvalidRequest: it holds a lone surrogate.
        """
        return [*check_text(text)]


def check_text(text: str, param: str = "prompt") -> bytes:
    """``text`` as UTF-8.

    Raises:
        InvalidRequest: it holds a lone surrogate, which no UTF-8 can carry.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "a text holds a lone surrogate",
            param=param,
            value=f"U+{ord(text[error.start]):04X} at character {error.start}",
            remedy="Send well-formed Unicode",
        ) from None


#: What a detokenizer needs of a tokenizer.
TokenBytes = Vocabulary


def token_bytes(spec: TokenizerSpec) -> TokenBytes:
    """Bytes of each token, without building the encoder or loading its library.

    Raises:
        BadModelFile: damaged file or lists. UnsupportedModel: a kind that is not known.
    """
    return build_vocabulary(spec)


def build_tokenizer(spec: TokenizerSpec) -> Tokenizer:
    """The tokenizer that ``spec`` describes; loads the library of its kind only.

    Raises:
        BadModelFile: damaged file or lists. UnsupportedModel: a kind or rule that is not known.
    """
    vocabulary = build_vocabulary(spec)
    encoder: Encoder
    if spec.kind == "bpe":
        from hybridgen.text.bpe_encoder import build_bpe_encoder  # noqa: PLC0415 - heavy

        encoder = build_bpe_encoder(spec)
    elif spec.kind == "sentencepiece":
        from hybridgen.text.sentencepiece_encoder import (  # noqa: PLC0415 - heavy
            build_sentencepiece_encoder,
        )

        encoder = build_sentencepiece_encoder(spec)
    else:
        encoder = ByteEncoder()
    return Tokenizer(encoder, vocabulary)
