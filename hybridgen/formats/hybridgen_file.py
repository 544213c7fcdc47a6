"""The ``.hybridgen`` file: a whole model, ready to map into memory.

It is a safetensors file (see ``safetensors_file``). Its tensors are exactly those of
``ModelConfig.weight_shapes`` in that order, all F32 or all BF16, q and k rows in rotate-half
order. ``__metadata__`` holds:

=========  =========================================================
format     ``hybridgen``
version    ``1``
dtype      ``F32`` or ``BF16``
name       the model's name for people
config     ``ModelConfig`` as JSON
tokenizer  ``TokenizerSpec`` as JSON
source     identity of the file that it was made from (see ``weights_cache``)
=========  =========================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.safetensors_file import ELEMENT_BYTES, SafetensorsHeader, read_header
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.formats.weight_check import check_weights
from hybridgen.models.config import ModelConfig

SUFFIX = ".hybridgen"
FORMAT = "hybridgen"
VERSION = "1"

DtypeName = Literal["float32", "bfloat16"]
STORED_DTYPES: dict[str, str] = {"float32": "F32", "bfloat16": "BF16"}


class HybridgenFile(NamedTuple):
    """A checked header."""

    info: ModelInfo
    dtype: DtypeName
    source: str


def file_metadata(info: ModelInfo, dtype: DtypeName, source: str) -> dict[str, str]:
    """The ``__metadata__`` of a file made from ``info``."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "dtype": STORED_DTYPES[dtype],
        "name": info.name,
        "config": msgspec.json.encode(info.config).decode(),
        "tokenizer": msgspec.json.encode(info.tokenizer).decode(),
        "source": source,
    }


def read_hybridgen(path: Path) -> HybridgenFile:
    """Read and check the header against itself; no tensor is loaded.

    Raises:
        BadModelFile: damaged, or no .hybridgen file.
        UnsupportedModel: made by another version.
        WeightsMismatch: the tensors are not those of the configuration.
    """
    header = read_header(path)
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        remedy = "Give the folder of a Hugging Face model, or a .hybridgen file"
        value = metadata.get("format", "a plain safetensors file")[:80]
        raise bad_field(path, "format", "is not hybridgen", value, FORMAT, remedy=remedy)
    if metadata.get("version") != VERSION:
        raise UnsupportedModel(
            "this .hybridgen file is of another version",
            field="version",
            value=metadata.get("version", "none")[:80],
            limit=VERSION,
            remedy="Convert the model again with this version of hybridgen",
            file=str(path),
        )
    names = {stored: name for name, stored in STORED_DTYPES.items()}
    dtype = names.get(metadata.get("dtype", ""))
    if dtype is None:
        raise bad_field(
            path, "dtype", "is unknown", metadata.get("dtype", "none")[:80], "F32, BF16"
        )
    config: ModelConfig = _decode(path, metadata, "config", ModelConfig)
    config.validate(str(path))
    tokenizer: TokenizerSpec = _decode(path, metadata, "tokenizer", TokenizerSpec)
    _check_tensors(path, header, config, STORED_DTYPES[dtype])
    info = ModelInfo(
        name=metadata.get("name", path.stem),
        path=str(path.resolve()),
        kind="hybridgen",
        config=config,
        tokenizer=_with_source_file(path, tokenizer),
        weight_types={STORED_DTYPES[dtype]: len(header.tensors)},
        weight_bytes=config.num_parameters * ELEMENT_BYTES[STORED_DTYPES[dtype]],
    )
    return HybridgenFile(info, _dtype_name(dtype), metadata.get("source", ""))


def inspect_hybridgen(path: Path) -> ModelInfo:
    """``ModelInfo`` of a .hybridgen file; raises as ``read_hybridgen``."""
    return read_hybridgen(path).info


def tokenizer_sibling(path: Path, source_file: str) -> Path:
    """Where a converted model keeps its copy of tokenizer.json or tokenizer.model."""
    return path.with_name(f"{path.stem}.{Path(source_file).name}")


def _dtype_name(name: str) -> DtypeName:
    return "float32" if name == "float32" else "bfloat16"


def _decode(path: Path, metadata: dict[str, str], key: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(metadata.get(key, ""), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_field(path, key, f"cannot be read: {error}") from None


def _check_tensors(path: Path, header: SafetensorsHeader, config: ModelConfig, dtype: str) -> None:
    found = {name: tensor.shape for name, tensor in header.tensors.items()}
    check_weights(config.weight_shapes(), found, str(path))
    for name, tensor in header.tensors.items():
        if tensor.dtype != dtype:
            raise bad_field(path, f"{name} (dtype)", "is not the file's", tensor.dtype, dtype)


def _with_source_file(path: Path, tokenizer: TokenizerSpec) -> TokenizerSpec:
    """A relative source_file lies beside the model."""
    name = tokenizer.source_file
    if name is None:
        return tokenizer
    place = Path(name)
    if not place.is_absolute():
        if place.name != name:
            raise bad_field(path, "tokenizer.source_file", "leaves the model's folder", name[:80])
        place = path.resolve().parent / name
    if not place.is_file():
        remedy = "Keep this file beside the model, or convert the model again"
        raise bad_field(path, "tokenizer.source_file", "is not there", str(place), remedy=remedy)
    return msgspec.structs.replace(tokenizer, source_file=str(place))
