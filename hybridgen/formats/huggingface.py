"""A folder in Hugging Face layout as a model: config.json, safetensors, tokenizer files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.families.registry import family_named, huggingface_config_of
from hybridgen.formats.huggingface_tokenizer import tokenizer_spec
from hybridgen.formats.json_file import JsonFile
from hybridgen.formats.model_file import ModelFile, bad_field
from hybridgen.formats.model_info import ModelInfo, model_name
from hybridgen.formats.pickled_weights import pickle_refused, pickled_in
from hybridgen.formats.safetensors_file import StoredTensor, read_header
from hybridgen.formats.weight_check import check_weights
from hybridgen.formats.weight_parts import tensor_shapes, weight_parts
from hybridgen.models.config import ModelConfig
from hybridgen.models.weight_names import LM_HEAD

MAX_INDEX_BYTES = 2**25
MAX_SHARDS = 1024
WEIGHT_DTYPES = ("F32", "F16", "BF16")


class Shard(NamedTuple):
    """A safetensors file and the tensors to take from it."""

    path: Path
    tensors: dict[str, StoredTensor]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def inspect_folder(folder: Path) -> ModelInfo:
    """Read what ``folder`` says about itself; no tensor is loaded.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: see those.
    """
    config_file = JsonFile.read(folder / "config.json")
    generation = JsonFile.read_if_there(folder / "generation_config.json")
    config = huggingface_config_of(config_file, generation)
    tokenizer = tokenizer_spec(folder, config)
    stored = [item for shard in weight_shards(folder, config) for item in shard.tensors.values()]
    return ModelInfo(
        name=model_name(folder.resolve().name, folder),
        path=str(folder.resolve()),
        kind="huggingface",
        config=msgspec.structs.replace(config, eos_ids=tokenizer.eos_ids),
        tokenizer=tokenizer,
        weight_types=dict(Counter(item.dtype for item in stored)),
        weight_bytes=sum(item.data_offsets[1] - item.data_offsets[0] for item in stored),
    )


def weight_shards(folder: Path, config: ModelConfig) -> list[Shard]:
    """The safetensors files of ``folder`` with the tensors that ``config`` asks for.

    Raises:
        WeightsMismatch: naming the tensor and both shapes.
        UnsupportedModel: no safetensors, or elements that are no plain floats.
        BadModelFile: a file is missing or damaged.
    """
    shards = _read_shards(folder)
    found: dict[str, tuple[int, ...]] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in found:
                raise bad_field(shard.path, name, "stands in two files of the model")
            found[name] = tensor.shape
    names = family_named(config.architecture).huggingface_names
    expected = tensor_shapes(weight_parts(config, names, found))
    spare = {name for name in found if name not in expected and _is_spare(name, config)}
    check_weights(expected, {name: found[name] for name in found if name not in spare}, str(folder))
    used = [
        Shard(path, {name: tensor for name, tensor in tensors.items() if name not in spare})
        for path, tensors in shards
    ]
    _check_elements(used)
    return used


def _read_shards(folder: Path) -> list[Shard]:
    return [Shard(path, read_header(path).tensors) for path in _shard_paths(folder)]


def _check_elements(shards: list[Shard]) -> None:
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if tensor.dtype not in WEIGHT_DTYPES:
                raise UnsupportedModel(
                    f"elements of tensor {name} are not supported",
                    tensor=name,
                    value=tensor.dtype,
                    limit=", ".join(WEIGHT_DTYPES),
                    remedy="Use an unquantized copy of the model",
                    file=str(shard.path),
                )


def _is_spare(name: str, config: ModelConfig) -> bool:
    """Tensors that nobody needs: computed again, tied, or of another kind than text."""
    spare_prefixes = family_named(config.architecture).spare_prefixes
    return (
        name.endswith(".rotary_emb.inv_freq")
        or (name.endswith(LM_HEAD) and config.is_embedding_tied)
        or name.startswith(spare_prefixes or ("\0",))
    )


def source_files(folder: Path) -> list[Path]:
    """Every file of the folder that prepared weights depend on."""
    names = ["config.json", "generation_config.json", "tokenizer_config.json"]
    names += ["tokenizer.json", "tokenizer.model", "chat_template.jinja"]
    there = [folder / name for name in names if (folder / name).exists()]
    return [*there, *_shard_paths(folder)]


def _shard_paths(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        return _indexed_paths(folder, index)
    pickled = pickled_in(folder)
    if pickled is not None:
        raise pickle_refused(pickled)
    raise BadModelFile(
        "the model folder has no weights",
        field="model.safetensors",
        value=str(folder),
        remedy="Fetch the model again with its *.safetensors files",
    )


def _indexed_paths(folder: Path, index: Path) -> list[Path]:
    with ModelFile(index) as file:
        if file.size_bytes > MAX_INDEX_BYTES:
            raise bad_field(index, "size", "is too large", file.size_bytes, MAX_INDEX_BYTES)
        text = file.buf[:]
    try:
        names = sorted(set(msgspec.json.decode(text, type=_Index).weight_map.values()))
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_field(index, "content", f"is not an index: {error}") from None
    if len(names) > MAX_SHARDS:
        raise bad_field(index, "weight_map", "names too many files", len(names), MAX_SHARDS)
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise bad_field(index, "weight_map", "names no safetensors file beside it", name[:80])
    return [folder / name for name in names]
