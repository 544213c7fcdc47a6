"""Damage to safetensors files, and to .hybridgen files, whose metadata holds JSON texts."""

from __future__ import annotations

import json
import random
import struct

from tools.mutate_bytes import HOSTILE_INTEGERS, HOSTILE_TEMPLATES, HOSTILE_TEXTS
from tools.mutate_json import Pairs, mutate_json, write_json

_METADATA = "__metadata__"


def mutate_safetensors(content: bytes, dice: random.Random) -> tuple[str, bytes]:
    """One damage to header, length or data; what it was, and the new content.

    Raises:
        ValueError: ``content`` has no header.
    """
    if len(content) < 8:
        raise ValueError("no header length")
    (length,) = struct.unpack_from("<Q", content)
    header, data = content[8 : 8 + length].decode(), content[8 + length :]
    match dice.randrange(12):
        case 0:
            lie = dice.choice((*HOSTILE_INTEGERS, length - 1, length + 1, len(content), 0))
            packed = struct.pack("<Q", lie % 2**64)
            return f"header length set to {lie}", packed + content[8:]
        case 1:
            stop = dice.randrange(len(data) + 1)
            return f"data cut off at {stop}", content[: 8 + length + stop]
        case 2:
            count = dice.choice((1, 8, 4096))
            return f"{count} bytes appended", content + bytes(count)
        case 3 | 4 | 5:
            what, header = _mutate_entry(header, dice)
        case 6 | 7 | 8 | 9 if _METADATA in header:
            what, header = _mutate_metadata(header, dice)
        case _:
            what, header = mutate_json(header, dice)
    text = header.encode("utf-8", "surrogatepass")
    return what, struct.pack("<Q", len(text)) + text + data


def _mutate_entry(header: str, dice: random.Random) -> tuple[str, str]:
    """A tensor's dtype, shape or place, or another's."""
    entries = json.loads(header, object_pairs_hook=Pairs)
    indices = [i for i, (name, _) in enumerate(entries) if name != _METADATA]
    if not indices:
        raise ValueError("no tensor")
    name, entry = entries[dice.choice(indices)]
    keys = [key for key, _ in entry]
    place = keys.index("data_offsets")
    begin, end = entry[place][1]
    match dice.randrange(5):
        case 0:
            other = dict(dice.choice([entries[i] for i in indices])[1])["data_offsets"]
            offsets = other
        case 1:
            offsets = [end, begin]
        case 2:
            shift = dice.choice((-1, 1, 4, 64))
            offsets = [begin + shift, end + shift]
        case 3:
            offsets = [dice.choice((begin, -1, *HOSTILE_INTEGERS)), dice.choice(HOSTILE_INTEGERS)]
        case _:
            dtype = dice.choice(("F64", "F16", "I8", "BOOL", "F8_E4M3", "F4", "", "f32"))
            entry[keys.index("dtype")] = ("dtype", dtype)
            return f"{name}.dtype set to {dtype}", write_json(entries)
    entry[place] = ("data_offsets", offsets)
    return f"{name}.data_offsets set to {offsets}", write_json(entries)


def _mutate_metadata(header: str, dice: random.Random) -> tuple[str, str]:
    """A text of the metadata, or something in it where it is JSON itself."""
    entries = json.loads(header, object_pairs_hook=Pairs)
    metadata = dict(entries)[_METADATA]
    index = dice.randrange(len(metadata))
    key, text = metadata[index]
    if key == "chat_template":
        what, text = "replaced", dice.choice(HOSTILE_TEMPLATES)
    elif text.startswith(("{", "[")) and dice.random() < 0.9:
        what, text = mutate_json(text, dice)
    else:
        what, text = "replaced", dice.choice((*HOSTILE_TEXTS, "0", "3", text[:-1], text + "x"))
    metadata[index] = (key, text)
    return f"metadata {key}: {what}", write_json(entries)
