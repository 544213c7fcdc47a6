"""Tokenizer files of a Hugging Face folder → ``TokenizerSpec``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hybridgen.errors import BadModelFile
from hybridgen.formats.json_file import JsonFile
from hybridgen.formats.model_file import ModelFile, bad_field
from hybridgen.formats.tokenizer_spec import MAX_TOKENIZER_BYTES, AddedToken, TokenizerSpec
from hybridgen.models.config import MAX_EOS_IDS, ModelConfig

MAX_TEMPLATE_BYTES = MAX_TEMPLATE_CHARS = 2**20
_ADDED = "added_tokens_decoder"


class _Piece(msgspec.Struct):
    id: str = ""


class _Processor(msgspec.Struct):
    """What is put around a text."""

    processors: list[_Processor] = []
    single: list[dict[str, _Piece]] = []
    """Of a text that stands alone: kind → what, ``SpecialToken`` or the text itself."""


class _TokenizerJson(msgspec.Struct):
    """The few keys of tokenizer.json that matter here; the vocabulary is skipped."""

    added_tokens: list[AddedToken] = []
    post_processor: _Processor | None = None


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
        ids = {token.content: token.id for token in content.added_tokens}
        bos_id = _begin_id(settings, ids, config)
        return TokenizerSpec(
            kind="bpe",
            bos_id=bos_id,
            eos_ids=_end_ids(settings, ids, config),
            add_bos=_adds_bos(settings, content, bos_id),
            chat_template=template,
            source_file=str(fast.resolve()),
            vocab_size=config.vocab_size,
        )
    if pieces.exists():
        with ModelFile(pieces) as file:
            if file.size_bytes > MAX_TOKENIZER_BYTES:
                limit = MAX_TOKENIZER_BYTES
                raise bad_field(pieces, "size", "is too large", file.size_bytes, limit)
        added = _added_tokens(settings, config)
        ids = {token.content: token.id for token in added}
        return TokenizerSpec(
            kind="sentencepiece",
            added_tokens=added,
            bos_id=_begin_id(settings, ids, config),
            eos_ids=_end_ids(settings, ids, config),
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


def _token_id(settings: JsonFile, key: str, ids: dict[str, int], default: int | None) -> int | None:
    """Id of a special token that the settings name; None where they say that there is none."""
    if key in settings.keys and settings.keys[key] is None:
        return None
    text = _special_text(settings, key)
    return default if text is None else ids.get(text, default)


def _begin_id(settings: JsonFile, ids: dict[str, int], config: ModelConfig) -> int | None:
    """The token that begins a text, which the model must know."""
    bos_id = _token_id(settings, "bos_token", ids, config.bos_id)
    if bos_id is not None and not 0 <= bos_id < config.vocab_size:
        raise settings.bad("bos_token", f"is none of {config.vocab_size} tokens", bos_id)
    return bos_id


def _end_ids(settings: JsonFile, ids: dict[str, int], config: ModelConfig) -> list[int]:
    """The tokenizer's own, which templates know, and then the model's."""
    own = _token_id(settings, "eos_token", ids, None)
    first = [] if own is None or not 0 <= own < config.vocab_size else [own]
    return list(dict.fromkeys([*first, *config.eos_ids]))[:MAX_EOS_IDS]


def _added_tokens(settings: JsonFile, config: ModelConfig) -> list[AddedToken]:
    """Tokens that the settings add to a tokenizer.model, or say more about."""
    section = settings.section(_ADDED)
    try:
        tokens = [
            msgspec.convert({**entry, "id": int(key)}, AddedToken)
            for key, entry in (section.keys if section else {}).items()
        ]
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise settings.bad(_ADDED, f"is malformed: {error}") from None
    for token in tokens:
        if not 0 <= token.id < config.vocab_size:
            raise settings.bad(_ADDED, "has an id outside the vocabulary", token.id)
    return tokens


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


def _adds_bos(settings: JsonFile, content: _TokenizerJson, bos_id: int | None) -> bool:
    """Whether plain text gets a BOS: the setting, or else what the post-processor does."""
    if settings.keys.get("add_bos_token") is not None:
        return settings.flag("add_bos_token", False)
    processor = content.post_processor or _Processor()
    first = [step.single[0] for step in (processor, *processor.processors) if step.single]
    texts = {token.content for token in content.added_tokens if token.id == bos_id}
    return any(piece["SpecialToken"].id in texts for piece in first if "SpecialToken" in piece)


def _chat_template(folder: Path, settings: JsonFile) -> str | None:
    """chat_template.jinja, or the key in tokenizer_config.json, or that in chat_template.json."""
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
    template = _named_template(settings)
    if template is not None:
        return template
    return _named_template(JsonFile.read_if_there(folder / "chat_template.json"))


def _named_template(settings: JsonFile) -> str | None:
    """The key's text, or the one called default where it holds several."""
    value: Any = settings.keys.get("chat_template")
    if isinstance(value, list):
        named = [item for item in value if isinstance(item, dict) and item.get("name") == "default"]
        value = named[0].get("template") if named else None
    if value is not None and not isinstance(value, str):
        raise settings.bad("chat_template", "is not a text", value)
    if value is not None and len(value) > MAX_TEMPLATE_CHARS:
        raise bad_field(
            settings.path, "chat_template", "is too long", len(value), MAX_TEMPLATE_CHARS
        )
    return value or None  # an empty one is how some folders say that there is none
