"""The safetensors container: a bounded header reader, and headers to write.

::

    u64 header length (little-endian) · JSON header · data

The header maps each tensor's name to ``dtype``, ``shape`` and ``data_offsets`` (begin and end in
the data part); ``__metadata__`` maps text to text. The data part has no holes, so the file's size
follows from the header. Format: github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from hybridgen.errors import InternalError
from hybridgen.formats.model_file import ModelFile, bad_field

MAX_HEADER_BYTES = 100_000_000  # the library's own limit
MAX_TENSORS = 2**16
MAX_DIMS = 8
DATA_ALIGNMENT = 64  # bytes: cache line, and what vector instructions like
ELEMENT_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
_METADATA = "__metadata__"


class StoredTensor(msgspec.Struct, frozen=True):
    """One entry of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class SafetensorsHeader(NamedTuple):
    """What a safetensors file says about itself."""

    metadata: dict[str, str]
    tensors: dict[str, StoredTensor]
    data_start: int


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check the header; no tensor is loaded.

    Raises:
        BadModelFile: naming the field.
    """
    with ModelFile(path) as file:
        if file.size_bytes < 8:
            raise bad_field(path, "header length", "is cut off", file.size_bytes, 8)
        (num_bytes,) = struct.unpack_from("<Q", file.buf, 0)
        limit = min(MAX_HEADER_BYTES, file.size_bytes - 8)
        if num_bytes > limit:
            raise bad_field(path, "header length", "is too large", num_bytes, limit)
        text = file.buf[8 : 8 + num_bytes]
        size_bytes = file.size_bytes
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(entries.pop(_METADATA, b"{}"), type=dict[str, str])
        if len(entries) > MAX_TENSORS:
            raise bad_field(path, "number of tensors", "is too large", len(entries), MAX_TENSORS)
        tensors = {
            name: msgspec.json.decode(entry, type=StoredTensor) for name, entry in entries.items()
        }
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_field(path, "header", f"is not a safetensors header: {error}") from None
    data_start = 8 + num_bytes
    _check_places(path, tensors, size_bytes - data_start)
    return SafetensorsHeader(metadata, tensors, data_start)


def _check_places(path: Path, tensors: Mapping[str, StoredTensor], data_bytes: int) -> None:
    """The tensors must fill the data part without hole or overlap."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if tensor.dtype not in ELEMENT_BYTES:
            raise bad_field(path, f"{name} (dtype)", "is not known", tensor.dtype)
        if len(tensor.shape) > MAX_DIMS or not all(0 <= size < 2**62 for size in tensor.shape):
            raise bad_field(path, f"{name} (shape)", "is impossible", str(tensor.shape)[:80])
        begin, stop = tensor.data_offsets
        num_bytes = math.prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype]
        if begin != end or stop - begin != num_bytes or stop > data_bytes:
            place = f"{begin} to {stop} of {data_bytes}"
            limit = f"{end} to {end + num_bytes}"
            raise bad_field(path, f"{name} (data_offsets)", "does not fit", place, limit)
        end = stop
    if end != data_bytes:
        raise bad_field(path, "size", "does not fit the header", data_bytes, end)


class TensorType(NamedTuple):
    """What a tensor is, without its place."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


def encode_header(tensors: Mapping[str, TensorType], metadata: Mapping[str, str]) -> bytes:
    """The header with its length in front, padded with spaces to ``DATA_ALIGNMENT``.

    Tensors lie in the order of ``tensors``. Each must begin at a multiple of its elements' size,
    which some readers need: put those with wide elements first.
    """
    entries: dict[str, object] = {_METADATA: dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.num_bytes
        if begin % ELEMENT_BYTES[tensor.dtype]:
            raise InternalError("a tensor would not be aligned", value=name)
        offsets = [begin, end]
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
    text = msgspec.json.encode(entries)
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
