"""Bodies with keys that nobody here knows: left out and named, where the server is lenient."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

from hybridgen.server.json_body import is_unknown_key, shown, unique_keys
from hybridgen.server.refusal import Header

#: Names in the header, and bytes of all of them.
MAX_NAMED_KEYS = 32
MAX_HEADER_BYTES = 1024


def without_unknown_keys(body: bytes, shape: type[msgspec.Struct]) -> tuple[bytes, list[str]]:
    """The body that is left, and the places of what is not.

    A body that is wrong in another way comes back as it is, for the strict reading to refuse.

    Args:
        body: JSON as it came.
        shape: what it should be.

    Returns:
        JSON, and places such as ``messages[0].foo`` in their order.

    Raises:
        InvalidRequest: a key stands in an object more than once.
    """
    try:
        msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        if not is_unknown_key(error):
            return body, []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body, []
    else:
        return body, []
    try:
        value = json.loads(body, object_pairs_hook=unique_keys)
        ignored: list[str] = []
        known = _known(value, inspect.type_info(shape), "", ignored)
        return json.dumps(known).encode(), ignored
    except (ValueError, RecursionError):  # what follows the unknown key is no JSON
        return body, []


def ignored_header(places: Sequence[str]) -> Header:
    """Names what was left out, in ASCII and within ``MAX_HEADER_BYTES``."""
    names: list[str] = []
    num_bytes = 0
    for place in places[:MAX_NAMED_KEYS]:
        name = shown(place).encode("ascii", "backslashreplace").decode()
        num_bytes += len(name) + 2
        if num_bytes > MAX_HEADER_BYTES:
            break
        names.append(name)
    if len(names) < len(places):
        names.append(f"and {len(places) - len(names)} more")
    return b"x-hybridgen-ignored", ", ".join(names).encode()


def _known(value: Any, kind: inspect.Type, place: str, ignored: list[str]) -> Any:
    """``value`` without what ``kind`` does not know, whose places are added to ``ignored``."""
    if isinstance(kind, inspect.UnionType):
        kind = next((one for one in kind.types if _fits(value, one)), kind)
    if isinstance(value, dict) and isinstance(kind, inspect.StructType):
        fields = {field.encode_name: field.type for field in kind.fields}
        if kind.tag_field is not None:
            fields[kind.tag_field] = inspect.AnyType()
        ignored += [_inside(place, key) for key in value if key not in fields]
        return {
            key: _known(inner, fields[key], _inside(place, key), ignored)
            for key, inner in value.items()
            if key in fields
        }
    if isinstance(value, list) and isinstance(kind, inspect.ListType):
        return [
            _known(inner, kind.item_type, f"{place}[{index}]", ignored)
            for index, inner in enumerate(value)
        ]
    return value


def _fits(value: Any, kind: inspect.Type) -> bool:
    if isinstance(value, dict) and isinstance(kind, inspect.StructType):
        return kind.tag_field is None or value.get(kind.tag_field) == kind.tag
    return isinstance(value, list) and isinstance(kind, inspect.ListType)


def _inside(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
