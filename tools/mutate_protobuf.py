"""Damage to a SentencePiece model (a protocol buffer): lengths, pieces, scores, kinds."""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

from tools.mutate_bytes import HOSTILE_REALS, HOSTILE_TEXTS, NAN

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES = 1  # field of ModelProto that repeats


class _Field(NamedTuple):
    number: int
    kind: int
    value: bytes  # without the key, and for bytes without the length


def mutate_protobuf(content: bytes, dice: random.Random) -> tuple[str, bytes]:
    """One damage; what it was, and the new content.

    Raises:
        ValueError: ``content`` cannot be walked.
    """
    fields = _fields(content)
    if not fields:
        raise ValueError("no field")
    rare = [i for i, field in enumerate(fields) if field.number != _PIECES]
    index = dice.choice(rare) if rare and dice.random() < 0.3 else dice.randrange(len(fields))
    field = fields[index]
    match dice.randrange(8):
        case 0:
            del fields[index]
            what = "deleted"
        case 1:
            fields.insert(dice.randrange(len(fields)), field)
            what = "repeated elsewhere"
        case 2:
            count = dice.choice((1, 100, 5000))
            fields[index:index] = [field] * count
            what = f"repeated {count} times"
        case 3:
            lie = dice.choice((0, 1, len(field.value) + 1, 2**31, 2**63, 2**64 - 1))
            head = b"".join(map(_packed, fields[:index]))
            tail = b"".join(map(_packed, fields[index + 1 :]))
            entry = _varint(field.number << 3 | _BYTES) + _varint(lie) + field.value
            return f"field {index} has length {lie}", head + entry + tail
        case 4:
            fields[index] = field._replace(number=dice.choice((1, 2, 3, 4, 5, 9, 2**28)))
            what = f"has number {fields[index].number}"
        case _:
            what, value = _mutate_nested(field.value, dice)
            fields[index] = field._replace(value=value)
    return f"field {index} {what}", b"".join(map(_packed, fields))


def _mutate_nested(value: bytes, dice: random.Random) -> tuple[str, bytes]:
    inner = _fields(value)
    if not inner:
        raise ValueError("nothing nested")
    index = dice.randrange(len(inner))
    field = inner[index]
    match field.kind:
        case 0:
            field = field._replace(value=_varint(dice.choice((0, 1, 6, 7, 255, 2**31, 2**64 - 1))))
        case 5:
            score = dice.choice((*(real for real in HOSTILE_REALS if abs(real) < 1e300), NAN))
            field = field._replace(value=struct.pack("<f", score))
        case 2:
            text = dice.choice((*HOSTILE_TEXTS, field.value.decode("latin-1")[::-1]))
            field = field._replace(value=dice.choice((text.encode(), b"\xff\xfe", b"\xe2\x96")))
        case _:
            field = field._replace(value=dice.randbytes(8))
    inner[index] = field
    return f"with item {field.number} {field.value[:20]!r}", b"".join(map(_packed, inner))


def _fields(content: bytes) -> list[_Field]:
    fields, position = [], 0
    while position < len(content):
        key, position = _read_varint(content, position)
        number, kind = key >> 3, key & 7
        start = position
        if kind == _VARINT:
            _, position = _read_varint(content, position)
        elif kind == _BYTES:
            length, start = _read_varint(content, position)
            position = start + length
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}")
        if position > len(content):
            raise ValueError("cut off")
        fields.append(_Field(number, kind, content[start:position]))
    return fields


def _packed(field: _Field) -> bytes:
    length = _varint(len(field.value)) if field.kind == _BYTES else b""
    return _varint(field.number << 3 | field.kind) + length + field.value


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(content) and shift < 64:
        byte = content[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
    raise ValueError("no varint")


def _varint(number: int) -> bytes:
    packed = bytearray()
    while number >= 0x80:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)
