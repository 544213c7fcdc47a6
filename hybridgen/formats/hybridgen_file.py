"""The ``.hybridgen`` file: a whole model in one file, ready to map into memory.

A safetensors file (see ``safetensors_file``) that any reader of that format opens; docs/format.md
specifies it. Its tensors are those of ``ModelConfig.weight_shapes``, which are fused as products
take them (layout ``fused-1``), q and k rows in rotate-half order. Their elements are all F32, BF16
or F16; but in a quantized file matrices are I8, each with a tensor ``NAME.scales`` of F32, one per
row (see ``weight_names.is_quantized``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from hybridgen.errors import ConfigError, UnsupportedModel
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.model_info import ModelInfo, model_name
from hybridgen.formats.safetensors_file import (
    ELEMENT_BYTES,
    MAX_HEADER_BYTES,
    SafetensorsHeader,
    TensorType,
    encode_header,
    read_header,
)
from hybridgen.formats.serve_hints import ServeHints
from hybridgen.formats.tokenizer_spec import MAX_TOKENIZER_BYTES, TokenizerSpec
from hybridgen.formats.weight_check import check_weights
from hybridgen.models.config import MAX_EOS_IDS, ModelConfig
from hybridgen.models.weight_names import is_quantized

SUFFIX = ".hybridgen"
FORMAT = "hybridgen"
VERSION = "2"
LAYOUT = "fused-1"
QUANTIZATION = "int8-rows"
SCALES = ".scales"
MAX_TEMPLATE_CHARS = 2**20
#: Some vocabularies name tokens that their model lacks; none is longer than a model's may be.
MAX_VOCAB_SIZE = 2**19

DtypeName = Literal["float32", "bfloat16", "float16"]
STORED_DTYPES: dict[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_DTYPE_NAMES: dict[str, DtypeName] = {STORED_DTYPES[name]: name for name in get_args(DtypeName)}
_DIGEST = re.compile("[0-9a-f]{64}")
_NO_DIGEST = "0" * 64
# Inside a JSON text quotes are escaped, so this is the key and nothing else.
_DIGEST_KEY = b'"header_sha256":"'


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file was made from."""

    name: str = ""
    """File or folder, without the way to it."""
    format: str = ""
    identity: str = ""
    """See ``weights_cache.source_identity``."""
    sha256: dict[str, str] = {}
    """Of each of its files; empty in the cache of prepared weights."""


class HybridgenFile(NamedTuple):
    """A checked header."""

    info: ModelInfo
    dtype: DtypeName
    """Of what is not quantized."""
    is_int8: bool
    source: SourceFacts
    sha256: dict[str, str]
    """Of each tensor's bytes."""
    header: SafetensorsHeader


def stored_tensors(
    config: ModelConfig, dtype: DtypeName, *, is_int8: bool
) -> dict[str, TensorType]:
    """Every tensor of a file in the order of the data: wide elements first."""
    tensors: dict[str, TensorType] = {}
    for name, shape in config.weight_shapes().items():
        if is_int8 and is_quantized(name, shape):
            tensors[name] = TensorType("I8", shape)
            tensors[name + SCALES] = TensorType("F32", shape[:-1])
        else:
            tensors[name] = TensorType(STORED_DTYPES[dtype], shape)
    widest_first = sorted(tensors.items(), key=lambda item: -ELEMENT_BYTES[item[1].dtype])
    return dict(widest_first)


def file_metadata(
    info: ModelInfo,
    dtype: DtypeName,
    source: SourceFacts,
    *,
    is_int8: bool = False,
    hashes: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The ``__metadata__`` of a file made from ``info``; without ``hashes``, zeros stand there.

    Raises:
        BadModelFile: the tokenizer's file cannot be read, or no reader would accept the tokenizer.
    """
    tokenizer = msgspec.structs.replace(
        info.tokenizer,
        content=info.tokenizer.read_source(),
        source_file=None,
        chat_template=None,
    )
    tensors = stored_tensors(info.config, dtype, is_int8=is_int8)
    template = info.tokenizer.chat_template
    _check_tokenizer(Path(info.path), tokenizer, template, info.config)
    return {
        "format": FORMAT,
        "version": VERSION,
        "layout": LAYOUT,
        "dtype": STORED_DTYPES[dtype],
        **({"quantization": QUANTIZATION} if is_int8 else {}),
        "name": info.name,
        "config": _json(info.config),
        "tokenizer": _json(tokenizer),
        **({} if template is None else {"chat_template": template}),
        "hints": _json(info.hints),
        "source": _json(source),
        "sha256": _json(hashes or dict.fromkeys(tensors, _NO_DIGEST)),
        "header_sha256": _NO_DIGEST,
    }


def encode_file_header(
    info: ModelInfo, dtype: DtypeName, metadata: Mapping[str, str], *, is_int8: bool = False
) -> bytes:
    """The bytes before the data, with their own digest in them; its length is always the same.

    Raises:
        UnsupportedModel: the tokenizer is longer than a header may be.
    """
    header = encode_header(stored_tensors(info.config, dtype, is_int8=is_int8), metadata)
    if len(header) > MAX_HEADER_BYTES:
        raise UnsupportedModel(
            "the tokenizer is too large for a .hybridgen file",
            value=f"a header of {len(header)} bytes",
            limit=f"{MAX_HEADER_BYTES} bytes",
            file=info.path,
        )
    place, digest = header_digest(header)
    return header[:place] + digest.encode() + header[place + len(digest) :]


def header_digest(header: bytes) -> tuple[int, str]:
    """(where ``header_sha256`` stands in these bytes, what it should be).

    It is the SHA-256 of the header with zeros in its place. -1: there is none.
    """
    place = header.find(_DIGEST_KEY)
    if place < 0:
        return -1, ""
    place += len(_DIGEST_KEY)
    blank = header[:place] + _NO_DIGEST.encode() + header[place + len(_NO_DIGEST) :]
    return place, hashlib.sha256(blank).hexdigest()


def read_hybridgen(path: Path) -> HybridgenFile:
    """Read and check the header against itself; no tensor is loaded.

    Raises:
        BadModelFile: damaged, or no .hybridgen file.
        UnsupportedModel: made by another version.
        WeightsMismatch: the tensors are not those of the configuration.
    """
    header = read_header(path)
    metadata = header.metadata
    _check_version(path, metadata)
    dtype = _DTYPE_NAMES.get(metadata.get("dtype", ""))
    if dtype is None:
        limit = ", ".join(_DTYPE_NAMES)
        raise bad_field(path, "dtype", "is unknown", metadata.get("dtype", "none")[:80], limit)
    is_int8 = _one_of(path, metadata, "quantization", ("", QUANTIZATION)) == QUANTIZATION
    config: ModelConfig = _decode(path, metadata, "config", ModelConfig)
    config.validate(str(path))
    tensors = stored_tensors(config, dtype, is_int8=is_int8)
    _check_tensors(path, header, tensors)
    hashes: dict[str, str] = _decode(path, metadata, "sha256", dict[str, str])
    if hashes.keys() != tensors.keys() or not all(map(_DIGEST.fullmatch, hashes.values())):
        raise bad_field(
            path, "sha256", "is not a digest for each tensor", len(hashes), len(tensors)
        )
    types = [tensor.dtype for tensor in tensors.values()]
    info = ModelInfo(
        name=model_name(metadata.get("name"), path),
        path=str(path.resolve()),
        kind="hybridgen",
        config=config,
        tokenizer=_tokenizer(path, metadata, config),
        weight_types={kind: types.count(kind) for kind in dict.fromkeys(types)},
        weight_bytes=sum(tensor.num_bytes for tensor in tensors.values()),
        hints=_hints(path, metadata),
    )
    source: SourceFacts = _decode(path, metadata, "source", SourceFacts)
    return HybridgenFile(info, dtype, is_int8, source, hashes, header)


def inspect_hybridgen(path: Path) -> ModelInfo:
    """``ModelInfo`` of a .hybridgen file; raises as ``read_hybridgen``."""
    return read_hybridgen(path).info


def read_hints(path: Path) -> ServeHints:
    """The hints of a .hybridgen file; raises as ``read_hybridgen``, and reads less."""
    metadata = read_header(path).metadata
    _check_version(path, metadata)
    return _hints(path, metadata)


def _check_version(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        remedy = "Give the folder of a Hugging Face model, or a .hybridgen file"
        value = metadata.get("format", "a plain safetensors file")[:80]
        raise bad_field(path, "format", "is not hybridgen", value, FORMAT, remedy=remedy)
    for key, known in (("version", VERSION), ("layout", LAYOUT)):
        if metadata.get(key) != known:
            raise UnsupportedModel(
                f"this .hybridgen file is of another {key}",
                field=key,
                value=metadata.get(key, "none")[:80],
                limit=known,
                remedy="Convert the model again with this version of hybridgen",
                file=str(path),
            )


def _check_tensors(
    path: Path, header: SafetensorsHeader, expected: Mapping[str, TensorType]
) -> None:
    shapes = {name: tensor.shape for name, tensor in expected.items()}
    found = {name: tensor.shape for name, tensor in header.tensors.items()}
    check_weights(shapes, found, str(path))
    for name, tensor in expected.items():
        dtype = header.tensors[name].dtype
        if dtype != tensor.dtype:
            raise bad_field(path, f"{name} (dtype)", "is not the file's", dtype, tensor.dtype)


def _tokenizer(path: Path, metadata: Mapping[str, str], config: ModelConfig) -> TokenizerSpec:
    spec: TokenizerSpec = _decode(path, metadata, "tokenizer", TokenizerSpec)
    template = metadata.get("chat_template")
    if spec.source_file is not None:
        raise bad_field(path, "tokenizer.source_file", "leaves the file", spec.source_file[:80])
    if spec.chat_template is not None:
        raise bad_field(path, "tokenizer.chat_template", "has its place beside the tokenizer")
    _check_tokenizer(path, spec, template, config)
    return msgspec.structs.replace(spec, chat_template=template or None)


def _check_tokenizer(
    path: Path, spec: TokenizerSpec, template: str | None, config: ModelConfig
) -> None:
    """What holds for every file, and so for everything that becomes one."""
    if template is not None and len(template) > MAX_TEMPLATE_CHARS:
        raise bad_field(path, "chat_template", "is too long", len(template), MAX_TEMPLATE_CHARS)
    if len(spec.content) > MAX_TOKENIZER_BYTES:
        num_bytes = len(spec.content)
        raise bad_field(path, "tokenizer.content", "is too large", num_bytes, MAX_TOKENIZER_BYTES)
    if spec.vocab_size != config.vocab_size:
        limit = config.vocab_size
        raise bad_field(path, "tokenizer.vocab_size", "is not the model's", spec.vocab_size, limit)
    if len(spec.eos_ids) > MAX_EOS_IDS:
        raise bad_field(path, "tokenizer.eos_ids", "are too many", len(spec.eos_ids), MAX_EOS_IDS)
    named = [*spec.eos_ids, spec.bos_id, spec.unk_id]
    _check_ids(path, [one for one in named if one is not None], config.vocab_size)
    _check_ids(path, [token.id for token in spec.added_tokens], MAX_VOCAB_SIZE)


def _check_ids(path: Path, ids: list[int], limit: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < limit:
            field = "tokenizer (ids)"
            raise bad_field(path, field, "names no token", token_id, f"[0, {limit})")


def _hints(path: Path, metadata: Mapping[str, str]) -> ServeHints:
    hints: ServeHints = _decode(path, metadata, "hints", ServeHints)
    try:
        hints.check()
    except ConfigError as error:
        raise bad_field(path, "hints", f"cannot be followed: {error}") from None
    return hints


def _one_of(path: Path, metadata: Mapping[str, str], key: str, accepted: tuple[str, ...]) -> str:
    value = metadata.get(key, "")
    if value not in accepted:
        raise bad_field(path, key, "is unknown", value[:80], ", ".join(filter(None, accepted)))
    return value


def _decode(path: Path, metadata: Mapping[str, str], key: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(metadata.get(key, ""), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_field(path, key, f"cannot be read: {error}") from None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
