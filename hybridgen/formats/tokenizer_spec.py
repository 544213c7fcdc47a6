"""A tokenizer as plain data: what a model file says about it, before anything is built."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec


class TokenType(enum.IntEnum):
    """Kinds of vocabulary entries, numbered as in SentencePiece and GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


TokenizerKind = Literal["bpe", "sentencepiece", "mock"]


class TokenizerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that ``text.tokenizer.build_tokenizer`` needs.

    Either ``tokens`` (+ ``merges`` or ``scores``) is the vocabulary, or ``source_file`` names a
    tokenizer.json (kind ``bpe``) or a tokenizer.model (kind ``sentencepiece``) that holds it;
    then ``tokens`` is empty. The ids and flags below count in both cases.
    """

    kind: TokenizerKind
    tokens: list[str] = []
    """Text of token i. ``bpe``: in GPT-2's byte alphabet (Ġ is a space), control tokens as
    text. ``sentencepiece``: pieces (▁ is a space, <0xNN> a byte). ``mock``: one character
    U+0000…U+00FF per byte, so ``token.encode("latin-1")`` is the token."""
    scores: list[float] = []
    """Log-probability of each piece (sentencepiece)."""
    token_types: list[int] = []
    """``TokenType`` of each token; empty means all NORMAL."""
    merges: list[str] = []
    """Pairs "left right", best first (bpe)."""
    pre_tokenizer: str = ""
    """Name of the rule that splits text before merging: smollm, gpt-2, llama-bpe, qwen2, …"""
    bos_id: int | None = None
    eos_ids: list[int] = []
    """Ids that end a text, the main one first."""
    unk_id: int | None = None
    add_bos: bool = False
    """A plain text prompt starts with bos_id."""
    add_space_prefix: bool = False
    """A space is put before the first word (sentencepiece)."""
    chat_template: str | None = None
    """Jinja source, or None when the model has none."""
    source_file: str | None = None
    """Absolute path of tokenizer.json or tokenizer.model."""
    vocab_size: int = 0
    """Rows of the model's embedding; ids from the vocabulary's length on have no text."""
