"""Mistral 7B and its kin: Llama whose tokens may attend to a window only (arXiv 2310.06825)."""

from __future__ import annotations

from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_names import PERMUTED
from hybridgen.formats.huggingface_config import layer_windows, sliding_window
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig


def _from_huggingface(config: JsonFile, _base: ModelConfig) -> Changes:
    return {"layer_windows": layer_windows(config, sliding_window(config))}


MISTRAL = Family(
    name="mistral",
    model_types=("mistral",),
    # llama.cpp converts it under the name of Llama; other writers give it its own.
    gguf_architecture="mistral",
    defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
    from_huggingface=_from_huggingface,
    gguf_names=PERMUTED,
)
