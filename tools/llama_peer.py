"""The embedded model in transformers, with our weights: what benchmarks compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hybridgen.models.config import ModelConfig

#: Part of a fused name → the names there of the weights that it is made of.
PARTS = {
    ".qkv_proj.": (".q_proj.", ".k_proj.", ".v_proj."),
    ".gate_up_proj.": (".gate_proj.", ".up_proj."),
}


def llama_peer(config: ModelConfig, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Any:
    """A LlamaForCausalLM that answers as the model would; without options of other families."""
    from transformers import LlamaConfig, LlamaForCausalLM

    peer = LlamaConfig(
        vocab_size=config.vocab_size,
        num_hidden_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.is_embedding_tied,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
    )
    model = LlamaForCausalLM(peer).to(dtype).eval()
    missing, unexpected = model.load_state_dict(separate(config, weights), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"weights do not fit: {missing} missing, {unexpected} unexpected")
    model.tie_weights()
    return model


def separate(config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by the names of ``weight_names`` → by those of transformers, as views."""
    sizes = {
        ".qkv_proj.": [config.q_size, config.kv_size, config.kv_size],
        ".gate_up_proj.": [config.intermediate_size] * 2,
    }
    found = {}
    for name, weight in weights.items():
        fused = next((part for part in PARTS if part in name), None)
        if fused is None:
            found[name] = weight
            continue
        for part, rows in zip(PARTS[fused], weight.split(sizes[fused]), strict=True):
            found[name.replace(fused, part)] = rows
    return found
