"""Qwen 3 with experts: no shared one, and no biases unless config.json asks for them."""

from __future__ import annotations

from hybridgen.formats import gguf_config
from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.huggingface_config import (
    attention_biases,
    chosen_window,
    experts,
    layer_windows,
)
from hybridgen.formats.huggingface_names import SEPARATE_EXPERTS, STACKED_EXPERTS
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig


def _from_huggingface(config: JsonFile, _base: ModelConfig) -> Changes:
    return {
        **attention_biases(config),
        "has_qk_norm": True,
        "layer_windows": layer_windows(config, chosen_window(config)),
        "experts": experts(config),
    }


def _from_gguf(keys: GgufKeys, base: ModelConfig) -> Changes:
    # Where files say nothing of the size, this is llama.cpp's rule.
    size = base.intermediate_size // max(1, keys.integer("expert_used_count"))
    return {
        "has_qk_norm": True,
        "experts": gguf_config.experts(keys, base, size=size, is_share_normalized=True),
    }


QWEN3_MOE = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    gguf_architecture="qwen3moe",
    has_gguf_experts=True,
    defaults={
        "sliding_window": 4096,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    handled_keys=frozenset({"expert_count"}),
    from_huggingface=_from_huggingface,
    from_gguf=_from_gguf,
    huggingface_names=(SEPARATE_EXPERTS, STACKED_EXPERTS),
)
