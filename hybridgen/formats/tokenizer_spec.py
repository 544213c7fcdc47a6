"""A tokenizer as plain data: what a model file says about it, before anything is built."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Literal

import msgspec

from hybridgen.formats.model_file import ModelFile, bad_field

#: Longest tokenizer.json or tokenizer.model.
MAX_TOKENIZER_BYTES = 2**26


class TokenType(enum.IntEnum):
    """Kinds of vocabulary entries, numbered as in SentencePiece and GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class AddedToken(msgspec.Struct, frozen=True):
    """A token beside a vocabulary, or one of it about which there is more to say."""

    id: int
    content: str
    special: bool = False
    """A control token: text never becomes it by itself."""
    lstrip: bool = False
    """White space before it goes."""
    rstrip: bool = False
    """White space behind it goes."""


TokenizerKind = Literal["bpe", "sentencepiece", "mock"]


class TokenizerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that ``text.tokenizer.build_tokenizer`` needs.

    Either ``tokens`` (+ ``merges`` or ``scores``) is the vocabulary, or a tokenizer.json (kind
    ``bpe``) or a tokenizer.model (kind ``sentencepiece``) holds it: ``source_file`` names that
    file, or ``content`` is what stands in it; then ``tokens`` is empty. The ids and flags below
    count in every case.
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
    added_tokens: list[AddedToken] = []
    """What a tokenizer.model or ``tokens`` do not say (sentencepiece); a tokenizer.json has its
    own."""
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
    content: bytes = b""
    """What tokenizer.json or tokenizer.model holds, where a model file carries it inside."""
    vocab_size: int = 0
    """Rows of the model's embedding; ids from the vocabulary's length on have no text."""

    @property
    def has_source(self) -> bool:
        """Whether the vocabulary stands in a tokenizer.json or tokenizer.model."""
        return bool(self.content) or self.source_file is not None

    @property
    def source_name(self) -> str:
        """What to call that file when something is wrong with it."""
        return self.source_file or "the tokenizer inside the model file"

    def read_source(self) -> bytes:
        """What stands in that file.

        Raises:
            BadModelFile: it cannot be read, or is longer than ``MAX_TOKENIZER_BYTES``.
        """
        if self.content or self.source_file is None:
            return self.content
        path = Path(self.source_file)
        with ModelFile(path) as file:
            if file.size_bytes > MAX_TOKENIZER_BYTES:
                raise bad_field(path, "size", "is too large", file.size_bytes, MAX_TOKENIZER_BYTES)
            return file.buf[:]
