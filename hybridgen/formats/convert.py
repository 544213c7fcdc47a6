"""Weights of any supported format → one ``.hybridgen`` file, tensor by tensor.

Each tensor is read, turned to float32, un-permuted where its format permutes, checked, cast, and
written before the next is touched: memory stays at a few copies of the largest tensor. The only
module of this package that imports torch.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.atomic_file import atomic_file
from hybridgen.formats.gguf import GgufFile, TensorInfo
from hybridgen.formats.gguf_names import PERMUTED_ARCHITECTURES, gguf_name, permuted_heads
from hybridgen.formats.huggingface import weight_shards
from hybridgen.formats.hybridgen_file import (
    STORED_DTYPES,
    DtypeName,
    file_metadata,
    read_hybridgen,
    tokenizer_sibling,
)
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.safetensors_file import encode_header, write_tensors
from hybridgen.formats.weights_cache import (
    cache_path,
    default_cache_dir,
    is_usable,
    source_identity,
)

TORCH_DTYPES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}
#: Called with the share done, 0 … 1.
Progress = Callable[[float], None]


def prepare_weights(
    info: ModelInfo,
    dtype: DtypeName,
    cache_dir: str | Path = "",
    on_progress: Progress | None = None,
) -> Path:
    """A ``.hybridgen`` file with ``info``'s weights in ``dtype``: from the cache, or made now.

    A cache entry is used only if its header, size, source and dtype are right, else made again.
    Safe when several processes do it at once.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: the source cannot be used.
        ConfigError: the cache has no space or cannot be written.
    """
    if info.kind == "hybridgen" and read_hybridgen(Path(info.path)).dtype == dtype:
        return Path(info.path)
    source = source_identity(info)
    path = cache_path(info, dtype, source, default_cache_dir(cache_dir))
    if not is_usable(path, info, dtype, source):
        _write(info, dtype, path, source, on_progress)
    return path


def convert_model(
    info: ModelInfo, dtype: DtypeName, output: Path, on_progress: Progress | None = None
) -> Path:
    """Write ``info`` as a model of its own; a tokenizer file is copied beside ``output``.

    Raises:
        As ``prepare_weights``.
    """
    source_file = info.tokenizer.source_file
    if source_file is not None:
        sibling = tokenizer_sibling(output, source_file)
        output.parent.mkdir(parents=True, exist_ok=True)
        if Path(source_file) != sibling:
            shutil.copyfile(source_file, sibling)
        tokenizer = msgspec.structs.replace(info.tokenizer, source_file=sibling.name)
        info = msgspec.structs.replace(info, tokenizer=tokenizer)
    _write(info, dtype, output, source_identity(info), on_progress)
    return output


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a ``.hybridgen`` file as views of its mapping: nothing is copied or read yet.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: the file is not whole.
    """
    read_hybridgen(path)
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """``path`` in the safetensors library; what it refuses although we did not is damage too."""
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise bad_field(path, "header", f"is refused by safetensors: {error}") from None


def _write(
    info: ModelInfo, dtype: DtypeName, path: Path, source: str, on_progress: Progress | None
) -> None:
    shapes = info.config.weight_shapes()
    metadata = file_metadata(info, dtype, source)
    header, data_bytes = encode_header(shapes, STORED_DTYPES[dtype], metadata)

    def stored() -> Iterator[memoryview]:
        num_bytes = 0
        for name, tensor in _weights(info):
            data = _checked(name, tensor, info).to(TORCH_DTYPES[dtype]).contiguous()
            view = data.view(torch.uint8).reshape(-1).numpy().data
            yield view
            num_bytes += view.nbytes
            if on_progress is not None:
                on_progress(num_bytes / data_bytes)

    with atomic_file(path, len(header) + data_bytes) as file:
        write_tensors(file, header, stored())


def _checked(name: str, tensor: torch.Tensor, info: ModelInfo) -> torch.Tensor:
    """``tensor`` if every element is finite."""
    # Least and greatest carry NaN and infinity on, in one pass without a mask.
    if not torch.isfinite(torch.stack(torch.aminmax(tensor))).all():
        raise BadModelFile(
            f"tensor {name} has elements that are not finite",
            field=name,
            file=info.path,
            remedy="The file is damaged; fetch or convert it again",
        )
    return tensor


def _weights(info: ModelInfo) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of every weight, in the order of ``weight_shapes``."""
    if info.kind == "gguf":
        return _gguf_weights(info)
    if info.kind == "huggingface":
        return _huggingface_weights(info)
    if info.kind == "hybridgen":
        weights = load_weights(Path(info.path))
        return ((name, weights[name]) for name in info.config.weight_shapes())
    raise UnsupportedModel(
        "this model has no weights", value=info.kind, remedy="The mock engine needs none"
    )


def _gguf_weights(info: ModelInfo) -> Iterator[tuple[str, torch.Tensor]]:
    config = info.config
    is_permuted = config.architecture in PERMUTED_ARCHITECTURES
    with GgufFile(Path(info.path)) as gguf:
        for name in config.weight_shapes():
            tensor = gguf.tensors[gguf_name(name)]
            values = _dequantized(gguf, tensor)
            num_heads = permuted_heads(name, config.num_heads, config.num_kv_heads)
            if is_permuted and num_heads:
                values = unpermute(values, num_heads)
            yield name, torch.from_numpy(values)


def unpermute(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows of q or k from GGUF's interleaved order to rotate-half order.

    Per head of d rows, GGUF stores row i of the first half at 2i and of the second at 2i + 1.

    Args:
        rows: [num_heads * d, n] weight, or [num_heads * d] bias.
        num_heads: heads in ``rows``.
    """
    half = rows.shape[0] // num_heads // 2
    split = rows.reshape(num_heads, half, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def _dequantized(gguf: GgufFile, tensor: TensorInfo) -> npt.NDArray[np.float32]:
    """A tensor's values as float32 of its shape; a copy, so the file can be closed."""
    import gguf as gguf_package  # noqa: PLC0415  slow to import; needed only on a cache miss

    num_rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
    with gguf.data(tensor) as view, np.errstate(over="ignore", invalid="ignore"):
        stored = np.frombuffer(view, dtype=np.uint8).reshape(num_rows, -1).copy()
        try:
            kind = gguf_package.GGMLQuantizationType[tensor.element.name]
            if tensor.element.name in ("F32", "F16"):
                stored = stored.view(np.float32 if tensor.element.name == "F32" else np.float16)
            values = gguf_package.dequantize(stored, kind)
        except (KeyError, NotImplementedError):
            raise UnsupportedModel(
                f"elements of tensor {tensor.name} cannot be dequantized",
                tensor=tensor.name,
                value=tensor.element.name,
                limit="F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, K- and I-quants",
                remedy="Use another quantization of this model",
                file=str(gguf.path),
            ) from None
    return np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape)


def _huggingface_weights(info: ModelInfo) -> Iterator[tuple[str, torch.Tensor]]:
    places: dict[str, Path] = {}
    for shard in weight_shards(Path(info.path), info.config):
        places.update(dict.fromkeys(shard.tensors, shard.path))
    with contextlib.ExitStack() as stack:
        files = {path: stack.enter_context(_opened(path)) for path in sorted(set(places.values()))}
        for name in info.config.weight_shapes():
            yield name, files[places[name]].get_tensor(name).to(torch.float32)
