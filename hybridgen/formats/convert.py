"""Weights of any supported format as one ``.hybridgen`` file, and that file as tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hybridgen.formats.atomic_file import OUTPUT, check_place
from hybridgen.formats.convert_rows import TORCH_DTYPES
from hybridgen.formats.convert_write import Progress, Target, write_model
from hybridgen.formats.hybridgen_file import SCALES, DtypeName, SourceFacts, read_hybridgen
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.weights_cache import (
    cache_path,
    default_cache_dir,
    is_usable,
    source_identity,
    source_paths,
)
from hybridgen.models.stored_weights import Int8Matrix, StoredWeights


def prepare_weights(
    info: ModelInfo,
    dtype: DtypeName,
    cache_dir: str | Path = "",
    on_progress: Progress | None = None,
    cpus: Collection[int] = (),
) -> Path:
    """A ``.hybridgen`` file with ``info``'s weights: itself, from the cache, or made now.

    One that is itself a ``.hybridgen`` file is taken as it is, whatever its elements: they are cast
    where they are loaded. A cache entry is in ``dtype``; it is used only if its header, size,
    source and dtype are right, else made again. Safe when several processes do it at once.

    Args:
        info: the model.
        dtype: of the weights in the cache.
        cache_dir: see ``default_cache_dir``.
        on_progress: called with the share done, 0 … 1.
        cpus: for the threads that convert; empty means those of this process.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: the source cannot be used.
        ConfigError: the cache has no space or cannot be written.
    """
    if info.kind == "hybridgen":
        return Path(info.path)
    identity = source_identity(info)
    path = cache_path(info, dtype, identity, default_cache_dir(cache_dir))
    if not is_usable(path, info, dtype, identity):
        source = SourceFacts(name=Path(info.path).name, format=info.kind, identity=identity)
        write_model(info, Target(path, dtype, cpus=cpus), source, on_progress=on_progress)
    return path


def convert_model(
    info: ModelInfo,
    dtype: DtypeName,
    output: Path,
    on_progress: Progress | None = None,
    *,
    is_int8: bool = False,
    is_replacing: bool = False,
) -> Path:
    """Write ``info`` as a model of its own: with its tokenizer, and the hashes of its source.

    Args:
        info: the model, with the hints that the file shall give.
        dtype: of what is not quantized.
        output: where to; it appears whole or not at all.
        on_progress: called with the share done, 0 … 1.
        is_int8: matrices become INT8 with a scale per row.
        is_replacing: an ``output`` that is there already is replaced, not refused.

    Raises:
        ConfigError: ``output`` is there, or cannot be written.
        BadModelFile, UnsupportedModel, WeightsMismatch: the source cannot be used.
    """
    check_place(output, 0, OUTPUT, is_replacing=is_replacing)
    source = SourceFacts(
        name=Path(info.path).name, format=info.kind, identity=source_identity(info)
    )
    write_model(
        info,
        Target(output, dtype, is_int8, purpose=OUTPUT, is_replacing=is_replacing),
        source,
        hashed_files=tuple(source_paths(info)),
        on_progress=on_progress,
    )
    return output


def load_weights(path: Path) -> StoredWeights:
    """All weights of a ``.hybridgen`` file, mapped: nothing is read before it is used.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: the file is not whole.
    """
    dtype = TORCH_DTYPES[read_hybridgen(path).dtype]
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    int8 = {
        name.removesuffix(SCALES): Int8Matrix(tensors.pop(name.removesuffix(SCALES)), scales)
        for name, scales in list(tensors.items())
        if name.endswith(SCALES)
    }
    floats = {name: tensor for name, tensor in tensors.items() if not name.endswith(SCALES)}
    return StoredWeights(floats, int8, dtype)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """``path`` in the safetensors library; what it refuses although we did not is damage too."""
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise bad_field(path, "header", f"is refused by safetensors: {error}") from None
