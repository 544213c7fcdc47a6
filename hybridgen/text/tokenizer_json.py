"""tokenizer.json read as data: its vocabulary, without building the tokenizer."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.tokenizer_spec import AddedToken

MAX_TOKENS = 4_000_000
_REMEDY = "Fetch or convert the model again"


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


def read_tokenizer_json(content: bytes, name: str) -> TokenizerJson:
    """Parse what stands in the file ``name``.

    Raises:
        BadModelFile: malformed. UnsupportedModel: other token kinds.
    """
    file = _decode(content, name)
    vocab = file.model.vocab
    ids = vocab if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    num_tokens = 1 + max([*ids.values(), *(token.id for token in file.added_tokens)], default=-1)
    lowest = min([*ids.values(), *(token.id for token in file.added_tokens)], default=0)
    if not 0 < num_tokens <= MAX_TOKENS or lowest < 0:
        raise BadModelFile(
            f"{name} has an impossible number of tokens",
            field="tokenizer.json (ids)",
            value=num_tokens,
            limit=MAX_TOKENS,
            remedy=_REMEDY,
        )
    tokens = [""] * num_tokens
    for text, token_id in ids.items():
        tokens[token_id] = text
    for added in file.added_tokens:
        tokens[added.id] = added.content
    steps = _steps(file.decoder)
    kinds = {str(step.get("type")) for step in steps}
    if not kinds & {"ByteLevel", "Metaspace", "Replace"}:
        raise UnsupportedModel(
            f"{name} joins tokens in a way that is not implemented",
            value=", ".join(sorted(kinds)) or "no decoder",
            limit="ByteLevel, Metaspace, or Replace + ByteFallback",
            remedy="Use a model with one of these tokenizers",
        )
    return TokenizerJson(
        tokens,
        file.added_tokens,
        is_byte_level="ByteLevel" in kinds,
        has_byte_fallback="ByteFallback" in kinds,
        strips_leading_space=any(_strips_space(step) for step in steps),
    )


def _decode(data: bytes, name: str) -> _File:
    try:
        return msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadModelFile(
            f"{name} is not a tokenizer.json: {error}", field="tokenizer.json", remedy=_REMEDY
        ) from error


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoder's steps: its own, or those of a Sequence."""
    if decoder is None:
        return []
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _strips_space(step: dict[str, Any]) -> bool:
    if step.get("type") == "Strip":
        start = step.get("start", 0)
        return step.get("content") == " " and isinstance(start, int) and start > 0
    if step.get("type") == "Metaspace":
        has_prefix = step.get("add_prefix_space", True) is not False
        return has_prefix and step.get("prepend_scheme", "always") != "never"
    return False
