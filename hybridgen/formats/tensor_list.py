"""The tensors of a model as its files hold them: names, shapes, bytes; nothing is loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.huggingface import weight_shards
from hybridgen.formats.hybridgen_file import read_hybridgen
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.safetensors_file import StoredTensor


class ListedTensor(msgspec.Struct, frozen=True):
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def list_tensors(info: ModelInfo) -> list[ListedTensor]:
    """Every tensor in the order of the files; none of a model that has no weights.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: the files are not those of ``info``.
    """
    path = Path(info.path)
    if info.kind == "hybridgen":
        return _listed(read_hybridgen(path).header.tensors)
    if info.kind == "huggingface":
        shards = weight_shards(path, info.config)
        return [tensor for shard in shards for tensor in _listed(shard.tensors)]
    if info.kind == "gguf":
        with GgufFile(path) as gguf:
            return [
                ListedTensor(tensor.name, tensor.element.name, tensor.shape, tensor.num_bytes)
                for tensor in gguf.tensors.values()
            ]
    return []


def _listed(tensors: dict[str, StoredTensor]) -> list[ListedTensor]:
    return [
        ListedTensor(
            name, tensor.dtype, tensor.shape, tensor.data_offsets[1] - tensor.data_offsets[0]
        )
        for name, tensor in tensors.items()
    ]
