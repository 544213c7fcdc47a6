"""What is known about a model before any weight is loaded."""

from __future__ import annotations

from typing import Literal

import msgspec

from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.models.config import ModelConfig

ModelKind = Literal["gguf", "huggingface", "hybridgen", "mock", "dummy"]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of ``formats.inspect.inspect_model``; torch-free and cheap."""

    name: str
    """What the model calls itself, for people."""
    path: str
    """Absolute path of the file or folder; ``mock`` for the mock model."""
    kind: ModelKind
    config: ModelConfig
    tokenizer: TokenizerSpec
    weight_types: dict[str, int] = {}
    """Stored element type → number of tensors, e.g. {"Q4_1": 210, "F32": 61}."""
    weight_bytes: int = 0
    """Bytes of all tensors as stored."""
