"""Bounded reader of GGUF files: metadata and tensor places, never a tensor's values.

Layout (version 2 and 3, little-endian), after the GGUF specification::

    "GGUF" · u32 version · u64 num_tensors · u64 num_metadata
    num_metadata × ( string key · u32 type · value )
    num_tensors  × ( string name · u32 num_dims · num_dims × u64 dim · u32 type · u64 offset )
    zeros up to a multiple of general.alignment (32)
    tensor data; offsets count from here

A string is u64 length + UTF-8; an array is u32 element type + u64 count + elements. Each length is
compared with the bytes left in the file, and with an absolute limit, before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import NamedTuple

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.gguf_types import ELEMENT_TYPES, ElementType
from hybridgen.formats.model_file import ModelFile, bad_field

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_METADATA = 2**14
MAX_TENSORS = 2**16
MAX_DIMS = 4
MAX_KEY_BYTES = 2**16 - 1
MAX_STRING_BYTES = 2**24
MAX_ARRAY_STRINGS = 2**21  # all string arrays of a file together: twice the largest vocabulary
MAX_ARRAY_NUMBERS = 2**22  # all other arrays together
MAX_ALIGNMENT = 2**16
DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "B",
    10: "Q",
    11: "q",
    12: "d",
}
_U64 = struct.Struct("<Q")


class TensorInfo(NamedTuple):
    """Where a tensor lies. ``shape`` is in C order (rows first), as numpy and torch have it."""

    name: str
    shape: tuple[int, ...]
    element: ElementType
    start: int  # absolute position in the file, bytes
    num_bytes: int


class GgufFile:
    """Metadata and tensor table of a GGUF file; the file stays mapped until ``close``.

    Raises:
        BadModelFile: a field is damaged or hostile; ``field`` names it.
        UnsupportedModel: big-endian or of an unknown version.
    """

    def __init__(self, path: Path) -> None:
        self.file = ModelFile(path)
        try:
            reader = _Reader(self.file)
            self.version, num_tensors, num_metadata = reader.header()
            self.metadata: dict[str, Value] = reader.metadata(num_metadata)
            alignment = _alignment(path, self.metadata)
            self.tensors: dict[str, TensorInfo] = reader.tensors(num_tensors, alignment)
        except BaseException:
            self.file.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self.file.path

    def data(self, tensor: TensorInfo) -> memoryview:
        """The stored bytes of ``tensor``, not copied."""
        return memoryview(self.file.buf)[tensor.start : tensor.start + tensor.num_bytes]

    def close(self) -> None:
        """Unmap the file; views from ``data`` must be gone."""
        self.file.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Reader:
    """A position in the file that never passes its end."""

    def __init__(self, file: ModelFile) -> None:
        self.path = file.path
        self.buf = file.buf
        self.size = file.size_bytes
        self.position = 0
        self.strings_left = MAX_ARRAY_STRINGS
        self.numbers_left = MAX_ARRAY_NUMBERS

    def header(self) -> tuple[int, int, int]:
        """(version, number of tensors, number of metadata entries)."""
        magic = bytes(self.buf[:4])
        if magic != MAGIC:
            raise bad_field(self.path, "magic", "is not GGUF", magic.hex(" "), "47 47 55 46")
        self.position = 4
        version = self._u32("version")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise UnsupportedModel(
                    "big-endian GGUF files are not supported",
                    field="version",
                    file=str(self.path),
                    remedy="Use the little-endian file of this model",
                )
            raise bad_field(self.path, "version", "is unknown", version, "2 or 3")
        num_tensors = self._count("tensor_count", MAX_TENSORS, 33)
        num_metadata = self._count("metadata_kv_count", MAX_METADATA, 13)
        return version, num_tensors, num_metadata

    def metadata(self, num_entries: int) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        for index in range(num_entries):
            key = self._string(f"metadata[{index}].key", MAX_KEY_BYTES)
            if key in entries:
                raise bad_field(self.path, key, "stands twice in the metadata")
            kind = self._u32(f"{key} (type)")
            entries[key] = self._array(key) if kind == _ARRAY else self._scalar(key, kind)
        return entries

    def tensors(self, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
        """The tensor table with absolute positions, checked against the file's size."""
        table = [self._tensor(index) for index in range(num_tensors)]
        data_start = -(-self.position // alignment) * alignment
        if table and data_start > self.size:
            raise bad_field(
                self.path, "tensor data", "is missing: the file is cut", self.size, data_start
            )
        placed: dict[str, TensorInfo] = {}
        for tensor in table:
            if tensor.name in placed:
                raise bad_field(self.path, tensor.name, "stands twice in the tensor table")
            if tensor.start % alignment:
                field, limit = f"{tensor.name} (offset)", f"a multiple of {alignment}"
                raise bad_field(self.path, field, "is not aligned", tensor.start, limit)
            start = data_start + tensor.start
            if start + tensor.num_bytes > self.size:
                field = f"{tensor.name} (offset)"
                raise bad_field(
                    self.path, field, "ends past the file", start + tensor.num_bytes, self.size
                )
            placed[tensor.name] = tensor._replace(start=start)
        self._check_overlap(placed)
        return placed

    def _check_overlap(self, tensors: dict[str, TensorInfo]) -> None:
        end, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda item: item.start):
            if tensor.start < end:
                field = f"{tensor.name} (offset)"
                raise bad_field(self.path, field, f"overlaps {before}", tensor.start, f">= {end}")
            end, before = tensor.start + tensor.num_bytes, tensor.name

    def _tensor(self, index: int) -> TensorInfo:
        name = self._string(f"tensor[{index}].name", MAX_KEY_BYTES)
        num_dims = self._u32(f"{name} (dimensions)")
        if not 1 <= num_dims <= MAX_DIMS:
            raise bad_field(
                self.path, f"{name} (dimensions)", "is impossible", num_dims, f"1 to {MAX_DIMS}"
            )
        dims = [self._u64(f"{name} (dimension {axis})") for axis in range(num_dims)]
        kind = self._u32(f"{name} (type)")
        offset = self._u64(f"{name} (offset)")
        if kind not in ELEMENT_TYPES:
            raise bad_field(self.path, f"{name} (type)", "is not a known element type", kind)
        element = ELEMENT_TYPES[kind]
        num_elements = math.prod(dims)
        if not 0 < num_elements < 2**62:
            shape = " × ".join(map(str, dims))
            raise bad_field(
                self.path, f"{name} (shape)", "is empty or too large", shape, "2^62 elements"
            )
        if dims[0] % element.block_size:
            limit = f"a multiple of {element.block_size} for {element.name}"
            raise bad_field(
                self.path, f"{name} (row length)", "does not fit its type", dims[0], limit
            )
        num_bytes = num_elements // element.block_size * element.block_bytes
        return TensorInfo(name, tuple(reversed(dims)), element, offset, num_bytes)

    def _scalar(self, key: str, kind: int) -> Scalar:
        if kind == _STRING:
            return self._string(key, MAX_STRING_BYTES)
        if kind not in _NUMBERS:
            raise bad_field(self.path, f"{key} (type)", "is not a known value type", kind)
        (number,) = self._unpack(key, "<" + _NUMBERS[kind])
        return bool(number) if kind == _BOOL else number

    def _array(self, key: str) -> list[Scalar]:
        kind = self._u32(f"{key} (element type)")
        count = self._u64(f"{key} (length)")
        if kind == _STRING:
            if count > self.strings_left:
                limit = self.strings_left
                raise bad_field(self.path, f"{key} (length)", "is too large", count, limit)
            self.strings_left -= count
            return self._strings(key, count)
        if kind not in _NUMBERS:  # arrays of arrays are allowed by the format and used by nobody
            raise bad_field(self.path, f"{key} (element type)", "is not a known value type", kind)
        if count > self.numbers_left:
            raise bad_field(self.path, f"{key} (length)", "is too large", count, self.numbers_left)
        self.numbers_left -= count
        numbers = self._unpack(key, f"<{count}{_NUMBERS[kind]}")
        return [bool(number) for number in numbers] if kind == _BOOL else list(numbers)

    def _strings(self, key: str, count: int) -> list[Scalar]:
        """The hot loop: a vocabulary and its merges are some hundred thousand strings."""
        buf, size, position, unpack = self.buf, self.size, self.position, _U64.unpack_from
        if count * 8 > size - position:
            raise bad_field(self.path, f"{key} (length)", "runs past the file", count)
        strings: list[Scalar] = []
        try:
            for _ in range(count):
                (num_bytes,) = unpack(buf, position)
                position += 8
                if num_bytes > size - position or num_bytes > MAX_STRING_BYTES:
                    field = f"{key}[{len(strings)}] (length)"
                    raise bad_field(
                        self.path, field, "runs past the file", num_bytes, size - position
                    )
                strings.append(buf[position : position + num_bytes].decode())
                position += num_bytes
        except struct.error:
            raise bad_field(self.path, f"{key}[{len(strings)}]", "is cut off") from None
        except UnicodeDecodeError as error:
            raise bad_field(
                self.path, f"{key}[{len(strings)}]", f"is not UTF-8: {error.reason}"
            ) from None
        self.position = position
        return strings

    def _string(self, field: str, max_bytes: int) -> str:
        num_bytes = self._u64(f"{field} (length)")
        limit = min(max_bytes, self.size - self.position)
        if num_bytes > limit:
            raise bad_field(self.path, f"{field} (length)", "is too large", num_bytes, limit)
        start, self.position = self.position, self.position + num_bytes
        try:
            return self.buf[start : self.position].decode()
        except UnicodeDecodeError as error:
            raise bad_field(self.path, field, f"is not UTF-8: {error.reason}") from None

    def _count(self, field: str, maximum: int, min_entry_bytes: int) -> int:
        count = self._u64(field)
        limit = min(maximum, (self.size - self.position) // min_entry_bytes)
        if count > limit:
            raise bad_field(self.path, field, "is larger than the file allows", count, limit)
        return count

    def _u32(self, field: str) -> int:
        (number,) = self._unpack(field, "<I")
        return int(number)

    def _u64(self, field: str) -> int:
        (number,) = self._unpack(field, "<Q")
        return int(number)

    def _unpack(self, field: str, layout: str) -> tuple[int | float, ...]:
        num_bytes = struct.calcsize(layout)
        if num_bytes > self.size - self.position:
            left = self.size - self.position
            raise bad_field(self.path, field, "is cut off: the file ends", num_bytes, left)
        values = struct.unpack_from(layout, self.buf, self.position)
        self.position += num_bytes
        return values


def _alignment(path: Path, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_power = isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0
    if not isinstance(alignment, int) or not is_power or not 8 <= alignment <= MAX_ALIGNMENT:
        limit = f"a power of two from 8 to {MAX_ALIGNMENT}"
        raise bad_field(path, "general.alignment", "is impossible", str(alignment), limit)
    return alignment
