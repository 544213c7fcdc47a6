"""Qwen 1.5 and 2 with experts: Qwen 2 whose blocks have experts and one that all tokens take."""

from __future__ import annotations

from hybridgen.formats import gguf_config
from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.huggingface_config import chosen_window, experts, layer_windows
from hybridgen.formats.huggingface_names import SEPARATE_EXPERTS, STACKED_EXPERTS
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig


def _from_huggingface(config: JsonFile, _base: ModelConfig) -> Changes:
    last = config.integer("max_window_layers", 28)
    windows = layer_windows(
        config, chosen_window(config), lambda layer: layer % 2 == 0 and layer < last
    )
    return {
        "has_qkv_bias": config.flag("qkv_bias", True),
        "layer_windows": windows,
        "experts": experts(config, shared_size=config.integer("shared_expert_intermediate_size")),
    }


def _from_gguf(keys: GgufKeys, base: ModelConfig) -> Changes:
    inner = base.intermediate_size
    return {
        "experts": gguf_config.experts(
            keys,
            base,
            # Where files say nothing, these are llama.cpp's rules.
            size=inner // max(1, keys.integer("expert_used_count")),
            is_share_normalized=False,
            shared_size=keys.integer("expert_shared_feed_forward_length", inner),
        )
    }


QWEN2_MOE = Family(
    name="qwen2_moe",
    model_types=("qwen2_moe",),
    gguf_architecture="qwen2moe",
    has_gguf_experts=True,
    defaults={
        "sliding_window": 4096,
        "max_position_embeddings": 32_768,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
    },
    handled_keys=frozenset({"expert_count"}),
    from_huggingface=_from_huggingface,
    from_gguf=_from_gguf,
    huggingface_names=(SEPARATE_EXPERTS, STACKED_EXPERTS),
)
