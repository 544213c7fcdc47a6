"""Small JSON files of a model folder, with typed access to their keys."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from hybridgen.errors import BadModelFile
from hybridgen.formats.model_file import ModelFile, bad_field

#: Gemma 3 lists its 6,242 added tokens in one of them.
MAX_JSON_BYTES = 2**23


class JsonFile:
    """A JSON object and the file it came from, for error messages."""

    def __init__(self, path: Path, keys: dict[str, Any]) -> None:
        self.path = path
        self.keys = keys

    @classmethod
    def read(cls, path: Path) -> JsonFile:
        """Parse ``path``, an object of at most ``MAX_JSON_BYTES``.

        Raises:
            BadModelFile: missing, too large, or no JSON object.
        """
        with ModelFile(path) as file:
            if file.size_bytes > MAX_JSON_BYTES:
                raise bad_field(path, "size", "is too large", file.size_bytes, MAX_JSON_BYTES)
            text = file.buf[:]
        try:
            return cls(path, msgspec.json.decode(text, type=dict[str, Any]))
        except (msgspec.DecodeError, RecursionError) as error:
            raise bad_field(path, "content", f"is not a JSON object: {error}") from None

    @classmethod
    def read_if_there(cls, path: Path) -> JsonFile:
        """As ``read``; a missing file is an empty object."""
        return cls.read(path) if path.exists() else cls(path, {})

    def section(self, *names: str) -> JsonFile | None:
        """The first of these keys that holds an object."""
        for name in names:
            value = self.keys.get(name)
            if isinstance(value, dict):
                return JsonFile(self.path, value)
            if value is not None:
                raise self.bad(name, "is not an object", value)
        return None

    def bad(self, key: str, problem: str, value: object = None) -> BadModelFile:
        """The error that names ``key``."""
        return bad_field(self.path, key, problem, None if value is None else str(value)[:80])

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; null counts as missing."""
        value = self.keys.get(key)
        value = default if value is None else value
        if value is None:
            raise self.bad(key, "is missing")
        if not _is_integer(value):
            raise self.bad(key, "is not an integer of 64 bits", value)
        return int(value)

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number; null counts as missing."""
        value = self.keys.get(key)
        value = default if value is None else value
        if value is None:
            raise self.bad(key, "is missing")
        if not _is_integer(value) and not (isinstance(value, float) and math.isfinite(value)):
            raise self.bad(key, "is not a finite number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; null counts as missing."""
        value = self.keys.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.bad(key, "is not true or false", value)
        return value

    def text(self, key: str, default: str) -> str:
        """A text; null counts as missing."""
        value = self.keys.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.bad(key, "is not a text", value)
        return value

    def integers(self, key: str) -> list[int]:
        """An integer or a list of integers; null counts as none."""
        value = self.keys.get(key)
        items = [] if value is None else value if isinstance(value, list) else [value]
        if not all(map(_is_integer, items)):
            raise self.bad(key, "is not a list of integers", value)
        return items


def _is_integer(value: object) -> bool:
    """Of 64 bits: JSON has larger ones, which no number here may be, and no float can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
