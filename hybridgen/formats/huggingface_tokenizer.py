"""Tokenizer files of a Hugging Face folder → ``TokenizerSpec``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hybridgen.errors import BadModelFile
from hybridgen.formats.json_file import JsonFile
from hybridgen.formats.model_file import ModelFile, bad_field
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.models.config import MAX_EOS_IDS, ModelConfig

MAX_TOKENIZER_BYTES = 2**26
MAX_TEMPLATE_BYTES = 2**20


class _AddedToken(msgspec.Struct):
    content: str
    id: int


class _TokenizerJson(msgspec.Struct):
    """The few keys of tokenizer.json that matter here; the vocabulary is skipped."""

    added_tokens: list[_AddedToken] = []
    post_processor: msgspec.Raw = msgspec.Raw(b"null")


def tokenizer_spec(folder: Path, config: ModelConfig) -> TokenizerSpec:
    """The tokenizer in ``folder``: tokenizer.json, or else tokenizer.model.

    Raises:
        BadModelFile: neither is there, or one of the files is damaged.
    """
    settings = JsonFile.read_if_there(folder / "tokenizer_config.json")
    fast, pieces = folder / "tokenizer.json", folder / "tokenizer.model"
    template = _chat_template(folder, settings)
    if fast.exists():
        content = _read_tokenizer_json(fast)
        bos = _special_text(settings, "bos_token")
        eos = _special_text(settings, "eos_token")
        ids = {token.content: token.id for token in content.added_tokens}
        return TokenizerSpec(
            kind="bpe",
            bos_id=ids.get(bos, config.bos_id) if bos else config.bos_id,
            eos_ids=_with_first(ids.get(eos) if eos else None, config),
            add_bos=_adds_bos(settings, content, bos),
            chat_template=template,
            source_file=str(fast.resolve()),
            vocab_size=config.vocab_size,
        )
    if pieces.exists():
        with ModelFile(pieces) as file:
            if file.size_bytes > MAX_TOKENIZER_BYTES:
                limit = MAX_TOKENIZER_BYTES
                raise bad_field(pieces, "size", "is too large", file.size_bytes, limit)
        return TokenizerSpec(
            kind="sentencepiece",
            bos_id=config.bos_id,
            eos_ids=config.eos_ids,
            add_bos=settings.flag("add_bos_token", True),
            add_space_prefix=settings.flag("add_prefix_space", True),
            chat_template=template,
            source_file=str(pieces.resolve()),
            vocab_size=config.vocab_size,
        )
    raise BadModelFile(
        "the model folder has no tokenizer",
        field="tokenizer",
        value=str(folder),
        limit="tokenizer.json or tokenizer.model",
        remedy="Fetch the model again with its tokenizer files",
    )


def _with_first(eos_id: int | None, config: ModelConfig) -> list[int]:
    """The model's end ids and the tokenizer's own, where that one is in the vocabulary."""
    extra = [] if eos_id is None or not 0 <= eos_id < config.vocab_size else [eos_id]
    return list(dict.fromkeys([*config.eos_ids, *extra]))[:MAX_EOS_IDS]


def _read_tokenizer_json(path: Path) -> _TokenizerJson:
    with ModelFile(path) as file:
        if file.size_bytes > MAX_TOKENIZER_BYTES:
            raise bad_field(path, "size", "is too large", file.size_bytes, MAX_TOKENIZER_BYTES)
        text = file.buf[:]
    try:
        return msgspec.json.decode(text, type=_TokenizerJson)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_field(path, "content", f"is not a tokenizer: {error}") from None


def _special_text(settings: JsonFile, key: str) -> str | None:
    """A special token, written as text or as {"content": text}."""
    value: Any = settings.keys.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise settings.bad(key, "is not a text", value)
    return value


def _adds_bos(settings: JsonFile, content: _TokenizerJson, bos: str | None) -> bool:
    """Whether plain text gets a BOS: the setting, or else what the post-processor does."""
    if settings.keys.get("add_bos_token") is not None:
        return settings.flag("add_bos_token", False)
    if bos is None:
        return False
    return msgspec.json.encode(bos) in bytes(content.post_processor)


def _chat_template(folder: Path, settings: JsonFile) -> str | None:
    """chat_template.jinja, or the key in tokenizer_config.json (a text or a list of named ones)."""
    path = folder / "chat_template.jinja"
    if path.exists():
        with ModelFile(path) as file:
            if file.size_bytes > MAX_TEMPLATE_BYTES:
                raise bad_field(path, "size", "is too large", file.size_bytes, MAX_TEMPLATE_BYTES)
            raw = file.buf[:]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise bad_field(path, "content", f"is not UTF-8: {error.reason}") from None
    value: Any = settings.keys.get("chat_template")
    if isinstance(value, list):
        named = [item for item in value if isinstance(item, dict) and item.get("name") == "default"]
        value = named[0].get("template") if named else None
    if value is not None and not isinstance(value, str):
        raise settings.bad("chat_template", "is not a text", value)
    return value
