"""What is known about a model before any weight is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from hybridgen.formats.serve_hints import ServeHints
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.models.config import ModelConfig
from hybridgen.printable import printable

#: Of a name: it stands in banners, messages between processes, and answers.
MAX_NAME_CHARS = 128

ModelKind = Literal["gguf", "huggingface", "hybridgen", "mock", "dummy"]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of ``formats.inspect.inspect_model``; torch-free and cheap."""

    name: str
    """What the model calls itself, for people; see ``model_name``."""
    path: str
    """Absolute path of the file or folder; ``mock`` for the mock model."""
    kind: ModelKind
    config: ModelConfig
    tokenizer: TokenizerSpec
    weight_types: dict[str, int] = {}
    """Stored element type → number of tensors, e.g. {"Q4_1": 210, "F32": 61}."""
    weight_bytes: int = 0
    """Bytes of all tensors as stored."""
    hints: ServeHints = ServeHints()
    """Defaults that the file brings for its own serving."""


def model_name(said: object, path: Path) -> str:
    """The name that a file gives itself, of one line and bounded; else that of the file."""
    name = said.strip() if isinstance(said, str) else ""
    return printable(name or path.stem)[:MAX_NAME_CHARS]
