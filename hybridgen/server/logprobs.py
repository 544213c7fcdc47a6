r"""Log-probabilities in the two shapes of the API, with the text of each token.

A chat lists objects with the token's bytes; a completion lists columns. A token that is not whole
characters is written with escapes (``\xe2\x96``), and in completions marked by ``bytes:``,
because a column of texts has no other place for bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol

import msgspec

from hybridgen.request import TokenLogprob

#: Stands for minus infinity, which JSON does not have.
LEAST_LOGPROB = -9999.0
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Vocabulary(Protocol):
    """What answers need of ``hybridgen.text.vocabulary.Vocabulary``."""

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """Bytes of token i."""

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids."""


class Alternative(msgspec.Struct, frozen=True):
    """A token that might have stood here."""

    token: str
    bytes: list[int]
    logprob: float


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of a chat's answer."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The ``logprobs`` of a chat's choice."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The ``logprobs`` of a completion's choice; all four lists are of one length."""

    text_offset: list[int]
    """Characters of the choice's text before the token."""
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]
    """Text → log-probability of the best tokens and of the chosen one."""


def chat_logprobs(tokens: Sequence[TokenLogprob], vocabulary: Vocabulary) -> ChatLogprobs:
    """``tokens`` as objects."""
    return ChatLogprobs([_chat_logprob(token, vocabulary) for token in tokens])


def completion_logprobs(
    tokens: Sequence[TokenLogprob], vocabulary: Vocabulary, text: str, offset: int
) -> CompletionLogprobs:
    """``tokens`` as columns.

    Args:
        tokens: those that ``text`` came from.
        vocabulary: the model's.
        text: a whole choice's, or a chunk's.
        offset: characters of the choice before ``text``.
    """
    pieces = [_bytes(token.token_id, vocabulary) for token in tokens]
    return CompletionLogprobs(
        text_offset=[offset + start for start in _starts(pieces, text)],
        token_logprobs=[_finite(token.logprob) for token in tokens],
        tokens=[_column_text(piece) for piece in pieces],
        top_logprobs=[_column_top(token, vocabulary) for token in tokens],
    )


def _chat_logprob(token: TokenLogprob, vocabulary: Vocabulary) -> ChatLogprob:
    piece = _bytes(token.token_id, vocabulary)
    return ChatLogprob(
        token=_text(piece),
        bytes=[*piece],
        logprob=_finite(token.logprob),
        top_logprobs=[_alternative(token_id, value, vocabulary) for token_id, value in token.top],
    )


def _alternative(token_id: int, logprob: float, vocabulary: Vocabulary) -> Alternative:
    piece = _bytes(token_id, vocabulary)
    return Alternative(_text(piece), [*piece], _finite(logprob))


def _column_top(token: TokenLogprob, vocabulary: Vocabulary) -> dict[str, float]:
    top: dict[str, float] = {}
    for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
        # Two ids may have one text; the better one, which comes first, speaks for it.
        top.setdefault(_column_text(_bytes(token_id, vocabulary)), _finite(logprob))
    return top


def _starts(pieces: Sequence[bytes], text: str) -> list[int]:
    """Where each piece begins in ``text``, in characters.

    The text may lack a leading space, and at its end special tokens and a stop string.
    """
    decoder = _Utf8Decoder("replace")
    decoded = [decoder.decode(piece) for piece in pieces]
    whole = "".join(decoded)
    num_spaces = len(whole) - len(whole.lstrip(" "))
    num_cut = next((cut for cut in range(num_spaces + 1) if whole.startswith(text, cut)), 0)
    ends = accumulate((len(part) for part in decoded), initial=-num_cut)
    return [min(max(start, 0), len(text)) for start, _ in zip(ends, pieces, strict=False)]


def _bytes(token_id: int, vocabulary: Vocabulary) -> bytes:
    return vocabulary.token_bytes[token_id]


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "backslashreplace")


def _column_text(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + _text(piece)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
