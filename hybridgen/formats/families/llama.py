"""Llama 1, 2, 3, 3.1 and SmolLM2: what all others are described against."""

from __future__ import annotations

from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_names import PERMUTED
from hybridgen.formats.huggingface_config import attention_biases
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig


def _from_huggingface(config: JsonFile, _base: ModelConfig) -> Changes:
    return {**attention_biases(config), "has_mlp_bias": config.flag("mlp_bias", False)}


LLAMA = Family(
    name="llama",
    model_types=("llama",),
    gguf_architecture="llama",
    from_huggingface=_from_huggingface,
    gguf_names=PERMUTED,
)
