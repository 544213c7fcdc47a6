"""Damage to GGUF files by field: counts, lengths, types, values, dimensions, offsets, entries."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Mapping
from typing import Any

from tools.mutate_bytes import (
    HOSTILE_INTEGERS,
    HOSTILE_REALS,
    HOSTILE_TEMPLATES,
    HOSTILE_TEXTS,
    NAN,
)

_STRING, _ARRAY = 8, 9
_FORMATS = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f"},
    **{7: "<B", 10: "<Q", 11: "<q", 12: "<d"},
}
_REALS = (6, 12)
_U64 = struct.Struct("<Q")


@dataclasses.dataclass
class _Array:
    kind: int
    items: list[Any]
    count: int | None = None  # a lie about len(items)


@dataclasses.dataclass
class _Entry:
    key: bytes
    kind: int
    value: Any  # bytes of a string, _Array, or a number
    written_kind: int | None = None  # a lie about kind
    length: int | None = None  # a lie about a string's length


@dataclasses.dataclass
class _Tensor:
    name: bytes
    dims: list[int]
    kind: int
    offset: int
    num_dims: int | None = None  # a lie about len(dims)


@dataclasses.dataclass
class _Gguf:
    version: int
    entries: list[_Entry]
    tensors: list[_Tensor]
    data: bytes
    num_tensors: int | None = None  # lies
    num_entries: int | None = None


def mutate_gguf(content: bytes, dice: random.Random) -> tuple[str, bytes]:
    """One damage; what it was, and the new content.

    Raises:
        ValueError, struct.error: ``content`` cannot be walked.
    """
    gguf = _Walker(content).read()
    match dice.randrange(12):
        case 0:
            what = _mutate_header(gguf, dice)
        case 1 | 2:
            what = _mutate_order(gguf, dice)
        case 3 | 4 | 5 | 6:
            what = _mutate_tensor(dice.choice(gguf.tensors), gguf, dice)
        case _:
            what = _mutate_entry(dice.choice(gguf.entries), dice)
    return what, _written(gguf)


def with_entries(content: bytes, changes: Mapping[str, tuple[int, Any]]) -> bytes:
    """The file with metadata entries of these (type, value); a list is an array of that type."""
    gguf = _Walker(content).read()
    kept = [entry for entry in gguf.entries if entry.key.decode() not in changes]
    for key, (kind, value) in changes.items():
        is_array = isinstance(value, list)
        made = _Array(kind, value) if is_array else value
        kept.append(_Entry(key.encode(), _ARRAY if is_array else kind, made))
    gguf.entries = kept
    return _written(gguf)


def _mutate_header(gguf: _Gguf, dice: random.Random) -> str:
    number = dice.choice((*HOSTILE_INTEGERS, len(gguf.entries) - 1, len(gguf.tensors) + 1))
    match dice.randrange(4):
        case 0:
            gguf.version = number & 0xFFFFFFFF
            return f"version {gguf.version}"
        case 1:
            gguf.num_tensors = number
            return f"tensor count {number}"
        case 2:
            gguf.num_entries = number
            return f"metadata count {number}"
        case _:
            stop = dice.randrange(len(gguf.data) + 1)
            gguf.data = gguf.data[:stop]
            return f"data cut off at {stop}"


def _mutate_order(gguf: _Gguf, dice: random.Random) -> str:
    """Entries twice, missing, or under each other's names."""
    items: list[Any] = dice.choice((gguf.entries, gguf.tensors))
    index, other = dice.randrange(len(items)), dice.randrange(len(items))
    name = _name(items[index])
    match dice.randrange(3):
        case 0:
            del items[index]
            return f"{name} deleted"
        case 1:
            items.insert(other, dataclasses.replace(items[index]))
            return f"{name} stands twice"
        case _:
            return f"{name} is called {_rename(items[index], _name_bytes(items[other]))}"


def _mutate_tensor(tensor: _Tensor, gguf: _Gguf, dice: random.Random) -> str:
    name = _name(tensor)
    number = dice.choice(HOSTILE_INTEGERS)
    match dice.randrange(7):
        case 0 | 1 | 2:
            return f"{name} {_mutate_dims(tensor, dice)}"
        case 3:
            tensor.kind = dice.choice((*range(40), 2**31))
            return f"{name} of type {tensor.kind}"
        case 4:
            near = tensor.offset + dice.choice((-1, 1, 32, -32))
            tensor.offset = dice.choice((number, near % 2**64))
            return f"{name} at {tensor.offset}"
        case 5:
            other = dice.choice(gguf.tensors)
            tensor.offset = other.offset
            return f"{name} over {_name(other)}"
        case _:
            text = dice.choice(HOSTILE_TEXTS)
            return f"{name} is called {_rename(tensor, text.encode())}"


def _mutate_dims(tensor: _Tensor, dice: random.Random) -> str:
    match dice.randrange(3):
        case 0:
            tensor.num_dims = dice.choice((0, 5, 8, 2**32 - 1))
            return f"with {tensor.num_dims} dimensions"
        case 1 if tensor.dims:
            axis = dice.randrange(len(tensor.dims))
            size = tensor.dims[axis]
            tensor.dims[axis] = dice.choice((*HOSTILE_INTEGERS, size - 1, size + 1, 2 * size))
            return f"with dimension {axis} of {tensor.dims[axis]}"
        case _:
            tensor.dims = dice.choice((tensor.dims[::-1], [*tensor.dims, 1], tensor.dims[:1]))
            return f"of shape {tensor.dims}"


def _mutate_entry(entry: _Entry, dice: random.Random) -> str:
    key = _name(entry)
    match dice.randrange(6):
        case 0:
            entry.written_kind = dice.choice((*range(14), 255, 2**32 - 1))
            return f"{key} with type {entry.written_kind}"
        case 1 if entry.kind in (_STRING, _ARRAY):
            lie = dice.choice((*HOSTILE_INTEGERS, 2**40))
            if entry.kind == _ARRAY:
                entry.value.count = lie
            else:
                entry.length = lie
            return f"{key} of length {lie}"
        case 2:
            entry.kind, entry.value = _hostile_value(dice)
            return f"{key} of type {entry.kind} set to {str(entry.value)[:60]}"
        case _:
            return f"{key} {_mutate_value(entry, dice)}"


def _mutate_value(entry: _Entry, dice: random.Random) -> str:
    if isinstance(entry.value, _Array):
        return _mutate_array(entry.value, dice)
    if entry.kind == _STRING:
        entry.value = _hostile_string(entry.value, dice)
    else:
        entry.value = _hostile_number(entry.kind, entry.value, dice)
    return f"set to {str(entry.value)[:60]}"


def _mutate_array(array: _Array, dice: random.Random) -> str:
    if not array.items:
        array.kind = dice.choice((*range(14), 2**32 - 1))
        return f"is empty, of element type {array.kind}"
    index, other = dice.randrange(len(array.items)), dice.randrange(len(array.items))
    item = array.items[index]
    match dice.randrange(6):
        case 0:
            array.items = array.items[:index]
            return f"cut to {index}"
        case 1:
            array.items[index] = array.items[other]
            return f"[{index}] set to [{other}]"
        case 2:
            array.items = array.items * dice.choice((2, 50))
            return f"repeated to {len(array.items)}"
        case 3:
            array.count, array.kind = len(array.items), dice.choice((*range(14), 2**32 - 1))
            if array.kind in _FORMATS or array.kind > _ARRAY:
                array.items = []
            return f"of element type {array.kind}"
        case _ if array.kind == _STRING:
            array.items[index] = _hostile_string(item, dice)
        case _:
            array.items[index] = _hostile_number(array.kind, item, dice)
    return f"[{index}] set to {str(array.items[index])[:40]}"


def _hostile_number(kind: int, number: float, dice: random.Random) -> float:
    if kind in _REALS:
        return dice.choice((*HOSTILE_REALS, NAN, -number, 2 * number))
    return dice.choice((*HOSTILE_INTEGERS, int(number) + 1, int(number) - 1, 2 * int(number)))


def _hostile_string(value: bytes, dice: random.Random) -> bytes:
    if b"{%" in value:
        return dice.choice(HOSTILE_TEMPLATES).encode()
    cut = dice.randrange(len(value) + 1)
    text = dice.choice(HOSTILE_TEXTS).encode()
    return dice.choice((text, value[:cut], value * 2, b"\xff\xfe" + value, value[::-1]))


def _hostile_value(dice: random.Random) -> tuple[int, Any]:
    kind = dice.choice((*_FORMATS, _STRING, _ARRAY))
    if kind == _STRING:
        return kind, dice.choice(HOSTILE_TEXTS).encode()
    if kind == _ARRAY:
        return kind, _Array(dice.choice((0, 4, 5, 6, 10)), [0] * dice.choice((0, 1, 5000)))
    return kind, _hostile_number(kind, 1, dice)


def _rename(item: _Entry | _Tensor, name: bytes) -> str:
    if isinstance(item, _Entry):
        item.key = name
    else:
        item.name = name
    return name.decode("utf-8", "replace")[:60]


def _name_bytes(item: _Entry | _Tensor) -> bytes:
    return item.key if isinstance(item, _Entry) else item.name


def _name(item: _Entry | _Tensor) -> str:
    return _name_bytes(item).decode("utf-8", "replace")[:60]


class _Walker:
    """Reads a whole file, without any of the checks of a real reader."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 4

    def read(self) -> _Gguf:
        version, num_tensors, num_entries = self._take("<I"), self._take("<Q"), self._take("<Q")
        entries = [self._entry() for _ in range(num_entries)]
        tensors = [self._tensor() for _ in range(num_tensors)]
        start = -(-self._position // 32) * 32
        if not entries or not tensors:
            raise ValueError("nothing in it")
        return _Gguf(version, entries, tensors, self._content[start:])

    def _entry(self) -> _Entry:
        key, kind = self._string(), self._take("<I")
        if kind != _ARRAY:
            return _Entry(key, kind, self._value(kind))
        element, count = self._take("<I"), self._take("<Q")
        return _Entry(key, kind, _Array(element, [self._value(element) for _ in range(count)]))

    def _tensor(self) -> _Tensor:
        name, count = self._string(), self._take("<I")
        dims = [self._take("<Q") for _ in range(count)]
        return _Tensor(name, dims, self._take("<I"), self._take("<Q"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind not in _FORMATS:
            raise ValueError(f"type {kind}")
        return self._take(_FORMATS[kind])

    def _string(self) -> bytes:
        length = self._take("<Q")
        start, self._position = self._position, self._position + length
        if self._position > len(self._content):
            raise ValueError("cut off")
        return self._content[start : self._position]

    def _take(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self._content, self._position)
        self._position += struct.calcsize(layout)
        return value


def _written(gguf: _Gguf) -> bytes:
    num_tensors = len(gguf.tensors) if gguf.num_tensors is None else gguf.num_tensors
    num_entries = len(gguf.entries) if gguf.num_entries is None else gguf.num_entries
    parts = [b"GGUF", struct.pack("<IQQ", gguf.version, num_tensors, num_entries)]
    parts += [part for entry in gguf.entries for part in _entry_bytes(entry)]
    for tensor in gguf.tensors:
        num_dims = len(tensor.dims) if tensor.num_dims is None else tensor.num_dims
        layout = f"<I{len(tensor.dims)}QIQ"
        dims = [size % 2**64 for size in tensor.dims]
        parts += [
            _text(tensor.name),
            struct.pack(layout, num_dims, *dims, tensor.kind, tensor.offset),
        ]
    head = b"".join(parts)
    return head + bytes(-len(head) % 32) + gguf.data


def _entry_bytes(entry: _Entry) -> list[bytes]:
    kind = entry.kind if entry.written_kind is None else entry.written_kind
    parts = [_text(entry.key), struct.pack("<I", kind)]
    if not isinstance(entry.value, _Array):
        return [*parts, _value_bytes(entry.kind, entry.value, entry.length)]
    array = entry.value
    count = len(array.items) if array.count is None else array.count
    parts.append(struct.pack("<IQ", array.kind, count))
    return [*parts, *(_value_bytes(array.kind, item) for item in array.items)]


def _value_bytes(kind: int, value: Any, length: int | None = None) -> bytes:
    if kind == _STRING:
        raw: bytes = value if isinstance(value, bytes) else str(value).encode()
        return _U64.pack(len(raw) if length is None else length) + raw
    layout = _FORMATS.get(kind, "<Q")
    if kind in _REALS:
        return struct.pack(layout, _fitting(float(value), kind))
    size = struct.calcsize(layout)
    return (int(value) % (1 << 8 * size)).to_bytes(size, "little")


def _fitting(number: float, kind: int) -> float:
    """float32 has no room for the largest doubles."""
    return number if kind == 12 or not 3.4e38 < abs(number) < float("inf") else 3.4e38


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw
