"""A small random model of each family in transformers, and the same for us."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from hybridgen.models.config import Experts, ModelConfig, RopeScaling
from tests.models.tiny_model import random_weight, tiny_config

Tensors = dict[str, torch.Tensor]
LONG = [1.0 + 0.5 * i for i in range(8)]
SHORT = [1.0 + 0.1 * i for i in range(8)]
LONGROPE = RopeScaling(
    type="longrope",
    factor=4.0,
    original_max_position=64,
    freq_factors=LONG,
    short_factors=SHORT,
)


class Peer(NamedTuple):
    """Both sides with the same weights."""

    model: PreTrainedModel
    config: ModelConfig
    tensors: Tensors

    @torch.no_grad()
    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """[n, vocab_size] of transformers, float32, at every position of ``ids`` int64[n]."""
        return self.model(ids[None]).logits[0]


def llama_peer(config: ModelConfig, **settings: object) -> Peer:
    """``config`` as a LlamaForCausalLM; ``settings`` are its names for what is not plain Llama."""
    biases = {"attention_bias": config.has_qkv_bias, "mlp_bias": config.has_mlp_bias}
    return _peer(transformers.LlamaForCausalLM, config, **{**biases, **settings})


def family_peer(family: str) -> Peer:
    """One of ``FAMILIES``."""
    model_type, config, settings = FAMILIES[family]
    return _peer(model_type, config, **settings)


def fused_tensors(config: ModelConfig, state: Tensors) -> Tensors:
    """The state of a transformers model by the names of ``weight_names``."""
    fused = {}
    for name in config.weight_shapes():
        found = [name] if name in state else [name.replace(*names) for names in _parts(name)]
        fused[name] = torch.cat([state[part] for part in found])
    return fused


def _parts(name: str) -> list[tuple[str, str]]:
    if "qkv_proj" in name:
        return [("qkv_proj", f"{part}_proj") for part in "qkv"]
    return [("gate_up_proj", f"{part}_proj") for part in ("gate", "up")]


def _peer(
    model_type: Callable[[PreTrainedConfig], PreTrainedModel],
    config: ModelConfig,
    **settings: object,
) -> Peer:
    config_type: Callable[..., PreTrainedConfig] = model_type.config_class  # type: ignore[attr-defined]
    common: dict[str, object] = {
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.is_embedding_tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attn_implementation": "eager",
    }
    model = model_type(config_type(**{**common, **settings})).eval()
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        values = random_weight(name, tuple(weight.shape), generator, config.norm_offset)
        weight.data.copy_(values)
    return Peer(model, config, fused_tensors(config, model.state_dict()))


_WINDOW = 24
_EXPERTS = {"num_experts": 6, "num_chosen": 2, "size": 40}
_GEMMA = {
    "norm_offset": 1.0,
    "has_post_norms": True,
    "embedding_scale": 96**0.5,
    "attention_scale": 24**-0.5,
    "activation": "gelu_tanh",
}
_LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
_LAYER_WINDOWS = [_WINDOW, 0, _WINDOW]
_PARTIAL = {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5}

#: Family → its model in transformers, the same for us, and their names for what sets it apart.
FAMILIES: dict[str, tuple[type[PreTrainedModel], ModelConfig, dict[str, object]]] = {
    "llama": (transformers.LlamaForCausalLM, tiny_config(), {}),
    "mistral": (
        transformers.MistralForCausalLM,
        tiny_config(layer_windows=[_WINDOW] * 2),
        {"sliding_window": _WINDOW},
    ),
    "qwen2": (transformers.Qwen2ForCausalLM, tiny_config(has_qkv_bias=True), {}),
    "qwen3": (transformers.Qwen3ForCausalLM, tiny_config(has_qk_norm=True), {}),
    "phi3": (
        transformers.Phi3ForCausalLM,
        tiny_config(
            hidden_size=192,
            layer_windows=[_WINDOW] * 2,
            rotary_dim=16,
            is_embedding_tied=False,
        ),
        {"sliding_window": _WINDOW, "rope_parameters": {"rope_type": "default", **_PARTIAL}},
    ),
    "phi3_longrope": (
        transformers.Phi3ForCausalLM,
        tiny_config(hidden_size=192, rotary_dim=16, rope_scaling=LONGROPE),
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "long_factor": LONG,
                "short_factor": SHORT,
                **_PARTIAL,
            },
        },
    ),
    "gemma2": (
        transformers.Gemma2ForCausalLM,
        tiny_config(
            **_GEMMA,
            num_layers=3,
            attention_softcap=5.0,
            logit_softcap=3.0,
            layer_windows=_LAYER_WINDOWS,
        ),
        {
            "query_pre_attn_scalar": 24,
            "sliding_window": _WINDOW,
            "layer_types": _LAYER_TYPES,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        transformers.Gemma3ForCausalLM,
        tiny_config(
            **_GEMMA,
            num_layers=3,
            has_qk_norm=True,
            layer_windows=_LAYER_WINDOWS,
            rope_base=1e6,
            local_rope_base=1e4,
            rope_scaling=RopeScaling(type="linear", factor=8.0),
        ),
        {
            "query_pre_attn_scalar": 24,
            "sliding_window": _WINDOW,
            "layer_types": _LAYER_TYPES,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
    ),
    "mixtral": (
        transformers.MixtralForCausalLM,
        tiny_config(experts=Experts(num_experts=6, num_chosen=2, size=120)),
        {"num_local_experts": 6, "num_experts_per_tok": 2},
    ),
    "qwen2_moe": (
        transformers.Qwen2MoeForCausalLM,
        tiny_config(
            has_qkv_bias=True,
            experts=Experts(**_EXPERTS, is_share_normalized=False, shared_size=72),
        ),
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 72,
        },
    ),
    "qwen3_moe": (
        transformers.Qwen3MoeForCausalLM,
        tiny_config(num_layers=3, has_qk_norm=True, experts=Experts(**_EXPERTS, dense_layers=[1])),
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
}
