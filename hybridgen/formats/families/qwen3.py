"""Qwen 3: Llama with normalized q and k heads, whose size is given (arXiv 2505.09388)."""

from __future__ import annotations

from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.huggingface_config import attention_biases, chosen_window, layer_windows
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig


def _from_huggingface(config: JsonFile, _base: ModelConfig) -> Changes:
    first = config.integer("max_window_layers", 28)
    window = chosen_window(config)
    return {
        **attention_biases(config),
        "has_qk_norm": True,
        "layer_windows": layer_windows(config, window, lambda layer: layer >= first),
    }


def _from_gguf(_keys: GgufKeys, _base: ModelConfig) -> Changes:
    return {"has_qk_norm": True}


QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    gguf_architecture="qwen3",
    defaults={"head_dim": 128, "sliding_window": 4096, "max_position_embeddings": 32_768},
    from_huggingface=_from_huggingface,
    from_gguf=_from_gguf,
)
