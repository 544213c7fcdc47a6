"""Where the rows of each weight lie in the files of a model, and how they are read."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.families.registry import family_named
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_types import ELEMENT_TYPES, READABLE, ElementType
from hybridgen.formats.huggingface import weight_shards
from hybridgen.formats.hybridgen_file import SCALES, read_hybridgen
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.safetensors_file import read_header
from hybridgen.formats.weight_parts import Part, Parts, weight_parts

Bytes = npt.NDArray[np.uint8]

_BLOCKS = ", Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, K-, I- and T-quants, FP4"
_ELEMENTS = {element.name: element for element in ELEMENT_TYPES.values()}


class StoredRows(NamedTuple):
    """Rows of one element type that lie one after the other in a file."""

    name: str
    """Of the tensor, for people."""
    path: Path
    start: int
    num_rows: int
    row_size: int
    """Elements of a row."""
    element: ElementType
    permuted_heads: int = 0
    """See ``weight_parts.Part``."""
    scales_start: int | None = None
    """Where a float32 scale for each row lies, if elements are I8."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.row_size // self.element.block_size * self.element.block_bytes


class Place(NamedTuple):
    """Where a tensor lies."""

    path: Path
    start: int
    element: ElementType


def stored_rows(info: ModelInfo) -> dict[str, list[StoredRows]]:
    """Fused name → the rows of which that weight is made, from first to last.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: the files are not those of ``info``.
    """
    if info.kind == "hybridgen":
        return _hybridgen_rows(Path(info.path))
    if info.kind == "gguf":
        parts, places = _gguf_places(info)
    elif info.kind == "huggingface":
        parts, places = _folder_places(info)
    else:
        raise UnsupportedModel(
            "this model has no weights",
            value=info.kind,
            remedy="Give a GGUF or .hybridgen file, or a folder in Hugging Face layout",
        )
    return {
        name: [_rows_of(part, places[part.name]) for part in members]
        for name, members in parts.items()
    }


def _rows_of(part: Part, place: Place) -> StoredRows:
    shape, element = part.taken_shape, place.element
    # A permuted bias is taken apart element by element.
    is_column = len(shape) == 1 and part.permuted_heads > 0
    if element.name not in READABLE or (is_column and element.block_size > 1):
        raise UnsupportedModel(
            f"elements of tensor {part.name} cannot be read",
            tensor=part.name,
            value=element.name,
            limit=f"F32, F16, BF16{'' if is_column else _BLOCKS}",
            remedy="Use another quantization of this model",
            file=str(place.path),
        )
    row_size = 1 if is_column else shape[-1]
    num_rows = math.prod(shape) // row_size
    rows = StoredRows(
        part.name, place.path, place.start, num_rows, row_size, element, part.permuted_heads
    )
    skipped_bytes = (part.expert or 0) * num_rows * rows.row_bytes
    return rows._replace(start=place.start + skipped_bytes)


def _gguf_places(info: ModelInfo) -> tuple[Parts, dict[str, Place]]:
    with GgufFile(Path(info.path)) as gguf:
        places = {
            name: Place(gguf.path, tensor.start, tensor.element)
            for name, tensor in gguf.tensors.items()
        }
    family = family_named(info.config.architecture)
    return weight_parts(info.config, (family.gguf_names,), places), places


def _folder_places(info: ModelInfo) -> tuple[Parts, dict[str, Place]]:
    places: dict[str, Place] = {}
    for shard in weight_shards(Path(info.path), info.config):
        data_start = read_header(shard.path).data_start
        for name, tensor in shard.tensors.items():
            start = data_start + tensor.data_offsets[0]
            places[name] = Place(shard.path, start, _ELEMENTS[tensor.dtype])
    family = family_named(info.config.architecture)
    return weight_parts(info.config, family.huggingface_names, places), places


def _hybridgen_rows(path: Path) -> dict[str, list[StoredRows]]:
    file = read_hybridgen(path)
    header, found = file.header, {}
    for name, shape in file.info.config.weight_shapes().items():
        tensor, scales = header.tensors[name], header.tensors.get(name + SCALES)
        found[name] = [
            StoredRows(
                name,
                path,
                header.data_start + tensor.data_offsets[0],
                math.prod(shape[:-1]),
                shape[-1],
                _ELEMENTS[tensor.dtype],
                scales_start=None if scales is None else header.data_start + scales.data_offsets[0],
            )
        ]
    return found


class RowReader:
    """The files of a model, open for reading at any place by any thread.

    Raises:
        BadModelFile: one of them cannot be opened.
    """

    def __init__(self, rows: Mapping[str, list[StoredRows]]) -> None:
        paths = {part.path for parts in rows.values() for part in parts}
        with contextlib.ExitStack() as stack:
            self._fds = {path: _open(path, stack) for path in sorted(paths)}
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def read(self, rows: StoredRows, begin: int, end: int) -> Bytes:
        """The stored bytes of rows ``begin`` to ``end``: [end - begin, row_bytes].

        Raises:
            BadModelFile: the file cannot be read, or became shorter meanwhile.
        """
        start = rows.start + begin * rows.row_bytes
        data = self._bytes(rows, start, (end - begin) * rows.row_bytes)
        return data.reshape(end - begin, -1)

    def read_scales(self, rows: StoredRows, begin: int, end: int) -> npt.NDArray[np.float32]:
        """The scales of rows ``begin`` to ``end``."""
        start = (rows.scales_start or 0) + 4 * begin
        return self._bytes(rows, start, 4 * (end - begin)).view(np.float32)

    def _bytes(self, rows: StoredRows, start: int, num_bytes: int) -> Bytes:
        data = np.empty(num_bytes, dtype=np.uint8)
        view, done = data.data, 0
        try:
            while done < num_bytes:
                count = os.preadv(self._fds[rows.path], [view[done:]], start + done)
                if count == 0:
                    raise bad_field(rows.path, rows.name, "is cut off", done, num_bytes)
                done += count
        except OSError as error:
            raise bad_field(
                rows.path, rows.name, f"cannot be read: {error.strerror}", str(rows.path)
            ) from None
        return data


def _open(path: Path, stack: contextlib.ExitStack) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise bad_field(path, "path", f"cannot be read: {error.strerror}", str(path)) from None
    stack.callback(os.close, fd)
    return fd
