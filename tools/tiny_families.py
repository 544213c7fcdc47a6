"""config.json and tensors of a tiny model of each family.

Written out apart from the product's own tables, after transformers' configuration and model
classes, so that each is a check of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

_COMMON: Config = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
_GEMMA: Config = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
#: What config.json says of each family beyond the common keys.
TINY_CONFIGS: dict[str, Config] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 16},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 32,
        "attention_bias": False,
    },
    "phi3": {
        "architectures": ["Phi3ForCausalLM"],
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 64,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0, 1.75, 3.0, 6.5],
            "short_factor": [1.0, 1.25, 1.5, 2.5],
        },
        "sliding_window": 24,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        **_GEMMA,
        "num_hidden_layers": 3,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "architectures": ["Gemma3ForCausalLM"],
        **_GEMMA,
        "num_hidden_layers": 7,
        "rope_theta": 100_000.0,
        "rope_local_base_freq": 1000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": 48,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 80,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": False,
    },
}


def tiny_config(vocab_size: int, changes: Config) -> Config:
    """config.json of the family ``changes["model_type"]`` (llama if missing)."""
    family = changes.get("model_type", "llama")
    return {
        "model_type": family,
        "vocab_size": vocab_size,
        **_COMMON,
        **TINY_CONFIGS[family],
        **changes,
    }


def weight_shapes(config: Config) -> Shapes:
    """Hugging Face name → shape."""
    hidden = config["hidden_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, shape in _layer_shapes(config, layer):
            shapes[prefix + name] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _layer_shapes(config: Config, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, family = config["hidden_size"], config["model_type"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family.startswith("gemma"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for name in norms:
        yield f"{name}.weight", (hidden,)
    if family.startswith(("qwen3", "gemma3")):
        yield "self_attn.q_norm.weight", (config["head_dim"],)
        yield "self_attn.k_norm.weight", (config["head_dim"],)
    linear = {**_attention(config), **_FEED_FORWARD.get(family, _gated)(config, layer)}
    for name, (rows, columns, has_bias) in linear.items():
        yield f"{name}.weight", (rows, columns)
        if has_bias:
            yield f"{name}.bias", (rows,)


#: Projection → outputs, inputs, whether it has a bias.
_Linear = dict[str, tuple[int, int, bool]]


def _attention(config: Config) -> _Linear:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_size = heads * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    has_bias = config.get("attention_bias", False)
    has_qkv_bias = has_bias or config["model_type"].startswith("qwen2")
    output = {"self_attn.o_proj": (hidden, q_size, has_bias)}
    if config["model_type"] == "phi3":
        return {"self_attn.qkv_proj": (q_size + 2 * kv_size, hidden, False), **output}
    return {
        "self_attn.q_proj": (q_size, hidden, has_qkv_bias),
        "self_attn.k_proj": (kv_size, hidden, has_qkv_bias),
        "self_attn.v_proj": (kv_size, hidden, has_qkv_bias),
        **output,
    }


def _gated(config: Config, _layer: int) -> _Linear:
    return _gate_up_down("mlp.", config, config["intermediate_size"])


def _gate_up_down(prefix: str, config: Config, inner: int) -> _Linear:
    hidden, has_bias = config["hidden_size"], config.get("mlp_bias", False)
    return {
        f"{prefix}gate_proj": (inner, hidden, has_bias),
        f"{prefix}up_proj": (inner, hidden, has_bias),
        f"{prefix}down_proj": (hidden, inner, has_bias),
    }


def _phi3(config: Config, _layer: int) -> _Linear:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return {
        "mlp.gate_up_proj": (2 * inner, hidden, False),
        "mlp.down_proj": (hidden, inner, False),
    }


def _mixtral(config: Config, _layer: int) -> _Linear:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    linear: _Linear = {"block_sparse_moe.gate": (config["num_local_experts"], hidden, False)}
    for expert in range(config["num_local_experts"]):
        prefix = f"block_sparse_moe.experts.{expert}."
        linear[f"{prefix}w1"] = (inner, hidden, False)
        linear[f"{prefix}w2"] = (hidden, inner, False)
        linear[f"{prefix}w3"] = (inner, hidden, False)
    return linear


def _qwen_moe(config: Config, layer: int) -> _Linear:
    if layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"]:
        return _gated(config, layer)
    hidden = config["hidden_size"]
    linear: _Linear = {"mlp.gate": (config["num_experts"], hidden, False)}
    for expert in range(config["num_experts"]):
        prefix = f"mlp.experts.{expert}."
        linear |= _gate_up_down(prefix, config, config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        inner = config["shared_expert_intermediate_size"]
        linear |= _gate_up_down("mlp.shared_expert.", config, inner)
        linear["mlp.shared_expert_gate"] = (1, hidden, False)
    return linear


_FEED_FORWARD: dict[str, Callable[[Config, int], _Linear]] = {
    "phi3": _phi3,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
}
