"""Qwen 2 and 2.5: Llama with biases on q, k and v, and a window in the last layers if asked for."""

from __future__ import annotations

from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.huggingface_config import chosen_window, layer_windows
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig


def _from_huggingface(config: JsonFile, _base: ModelConfig) -> Changes:
    first = config.integer("max_window_layers", 28)
    window = chosen_window(config)
    return {
        "has_qkv_bias": True,
        "layer_windows": layer_windows(config, window, lambda layer: layer >= first),
    }


QWEN2 = Family(
    name="qwen2",
    model_types=("qwen2",),
    gguf_architecture="qwen2",
    defaults={"sliding_window": 4096, "max_position_embeddings": 32_768},
    from_huggingface=_from_huggingface,
)
