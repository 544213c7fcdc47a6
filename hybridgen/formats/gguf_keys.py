"""Typed access to a GGUF file's ``<architecture>.<key>`` metadata."""

from __future__ import annotations

import math
import struct

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.model_file import bad_field

_MAX_FACTORS = 512  # half of the largest head


def gguf_architecture(gguf: GgufFile) -> str:
    """``general.architecture``.

    Raises:
        BadModelFile: it is not there.
    """
    architecture = gguf.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise bad_field(gguf.path, "general.architecture", "is missing or no text")
    return architecture


class GgufKeys:
    """The keys of one file's architecture; each error names its key."""

    def __init__(self, gguf: GgufFile) -> None:
        self.gguf = gguf
        self.architecture = gguf_architecture(gguf)

    def has(self, key: str) -> bool:
        """Whether ``key`` is there."""
        return f"{self.architecture}.{key}" in self.gguf.metadata

    def unsupported(
        self, key: str, value: str | float, limit: str | None = None
    ) -> UnsupportedModel:
        """The error that names ``key`` as not implemented."""
        return UnsupportedModel(
            f"{key} of this model is not implemented",
            field=key,
            value=value,
            limit=limit,
            remedy="Choose a model or an export without this variant",
            file=str(self.gguf.path),
        )

    def bad(self, key: str, problem: str, value: object = None) -> BadModelFile:
        """The error that names ``key`` as damaged."""
        text = None if value is None else str(value)[:80]
        return bad_field(self.gguf.path, f"{self.architecture}.{key}", problem, text)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer."""
        value = self.gguf.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise self.bad(key, "is missing")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.bad(key, "is not an integer", value)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.gguf.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise self.bad(key, "is missing")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self.bad(key, "is not a finite number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.gguf.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, bool):
            raise self.bad(key, "is not true or false", value)
        return value

    def text(self, key: str, default: str) -> str:
        """A text."""
        value = self.gguf.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, str):
            raise self.bad(key, "is not text", value)
        return value

    def per_layer(self, key: str, default: int | None = None) -> int:
        """An integer that may be given per layer, if all layers have the same."""
        values = self.gguf.metadata.get(f"{self.architecture}.{key}")
        if not isinstance(values, list):
            return self.integer(key, default)
        if not values or not all(isinstance(value, int) for value in values):
            raise self.bad(key, "is not a list of integers")
        if len(set(values)) > 1:
            raise self.unsupported(key, "different values per layer")
        return int(values[0])

    def factors(self, name: str) -> list[float]:
        """The tensor ``name``, a short vector that belongs to the configuration."""
        tensor = self.gguf.tensors.get(name)
        if tensor is None:
            raise bad_field(self.gguf.path, name, "is missing")
        if tensor.element.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_FACTORS:
            shape = f"{tensor.element.name} {tensor.shape}"
            raise bad_field(self.gguf.path, name, "is not a short F32 vector", shape)
        with self.gguf.data(tensor) as view:
            return list(struct.unpack(f"<{tensor.shape[0]}f", view))
