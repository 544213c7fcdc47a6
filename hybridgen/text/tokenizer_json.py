"""tokenizer.json read as data: its vocabulary, without building the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hybridgen.errors import BadModelFile, UnsupportedModel

MAX_FILE_BYTES = 256 * 2**20
MAX_TOKENS = 4_000_000


class AddedToken(msgspec.Struct, frozen=True):
    """A token beside the model's own vocabulary."""

    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _Model(msgspec.Struct, frozen=True):
    type: str = "BPE"
    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _File(msgspec.Struct, frozen=True):
    model: _Model
    added_tokens: list[AddedToken] = []
    decoder: dict[str, Any] | None = None


class TokenizerJson(NamedTuple):
    """What a tokenizer.json says about its tokens."""

    tokens: list[str]  # text of token i, as the file writes it; "" where an id is not used
    added_tokens: list[AddedToken]
    is_byte_level: bool  # tokens in GPT-2's byte alphabet; otherwise ▁ is a space
    has_byte_fallback: bool  # <0xNN> tokens are bytes
    strips_leading_space: bool


def read_tokenizer_json(path: Path) -> TokenizerJson:
    """Parse the file at ``path``.

    Raises:
        BadModelFile: unreadable, too large or malformed. UnsupportedModel: other token kinds.
    """
    file = _decode(_read(path), path)
    vocab = file.model.vocab
    ids = vocab if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    num_tokens = 1 + max([*ids.values(), *(token.id for token in file.added_tokens)], default=-1)
    lowest = min([*ids.values(), *(token.id for token in file.added_tokens)], default=0)
    if not 0 < num_tokens <= MAX_TOKENS or lowest < 0:
        raise BadModelFile(
            f"{path} has an impossible number of tokens", value=num_tokens, limit=MAX_TOKENS
        )
    tokens = [""] * num_tokens
    for text, token_id in ids.items():
        tokens[token_id] = text
    for added in file.added_tokens:
        tokens[added.id] = added.content
    steps = _steps(file.decoder)
    kinds = {step.get("type") for step in steps}
    if not kinds & {"ByteLevel", "Metaspace", "Replace"}:
        raise UnsupportedModel(
            f"{path} joins tokens in a way that is not implemented",
            value=", ".join(sorted(str(kind) for kind in kinds)) or "no decoder",
            limit="ByteLevel, Metaspace, or Replace + ByteFallback",
        )
    return TokenizerJson(
        tokens,
        file.added_tokens,
        is_byte_level="ByteLevel" in kinds,
        has_byte_fallback="ByteFallback" in kinds,
        strips_leading_space=any(_strips_space(step) for step in steps),
    )


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadModelFile(f"{path} is too large", value=size, limit=MAX_FILE_BYTES)
        return path.read_bytes()
    except OSError as error:
        raise BadModelFile(f"{path} cannot be read: {error.strerror}") from error


def _decode(data: bytes, path: Path) -> _File:
    try:
        return msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadModelFile(f"{path} is not a tokenizer.json: {error}") from error


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoder's steps: its own, or those of a Sequence."""
    if decoder is None:
        return []
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _strips_space(step: dict[str, Any]) -> bool:
    if step.get("type") == "Strip":
        return step.get("content") == " " and step.get("start", 0) > 0
    if step.get("type") == "Metaspace":
        has_prefix = step.get("add_prefix_space", True) is not False
        return has_prefix and step.get("prepend_scheme", "always") != "never"
    return False
