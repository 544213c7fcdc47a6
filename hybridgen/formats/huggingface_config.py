"""What config.json says in the same way for all families → ``ModelConfig``.

Key names and defaults after transformers' configuration classes. What sets a family apart, its
file in ``families`` adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Literal

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.huggingface_rope import rope, rope_section
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import MAX_EOS_IDS, Experts, ModelConfig, RopeScaling

_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def base_config(
    config: JsonFile, generation: JsonFile, family: str, handled: Collection[str]
) -> ModelConfig:
    """A Llama-like ``ModelConfig`` of the family's name; to be validated.

    Args:
        config: config.json.
        generation: generation_config.json, which may be empty.
        family: name of the family.
        handled: keys of variants that the family itself understands.

    Raises:
        UnsupportedModel: a variant that the block does not cover.
        BadModelFile: a key is missing or of the wrong type.
    """
    _refuse_variants(config, handled)
    num_heads = config.integer("num_attention_heads")
    if num_heads < 1:
        raise config.bad("num_attention_heads", "is impossible", num_heads)
    hidden_size = config.integer("hidden_size")
    head_dim = config.integer("head_dim", hidden_size // num_heads)
    eos_ids = [*generation.integers("eos_token_id"), *config.integers("eos_token_id")]
    bos_ids = [*config.integers("bos_token_id"), *generation.integers("bos_token_id")]
    rope_base, rope_scaling = rope(config)
    return ModelConfig(
        architecture=family,
        vocab_size=config.integer("vocab_size"),
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position=_max_position(config, rope_scaling),
        rope_base=rope_base,
        rope_scaling=rope_scaling,
        rotary_dim=_rotary_dim(config, head_dim),
        rms_norm_eps=config.real("rms_norm_eps", 1e-6),
        is_embedding_tied=config.flag("tie_word_embeddings", False),
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=list(dict.fromkeys(eos_ids))[:MAX_EOS_IDS],
        activation=_activation(config),
    )


def unsupported(
    config: JsonFile, key: str, value: str | float, limit: str | None = None
) -> UnsupportedModel:
    """The error that names ``key`` as not implemented."""
    return UnsupportedModel(
        f"{key} of this model is not implemented",
        field=key,
        value=value if value != "" else "nothing",
        limit=limit,
        remedy="Choose a model or an export without this variant",
        file=str(config.path),
    )


def attention_biases(config: JsonFile) -> dict[str, bool]:
    """Fields of ``ModelConfig`` that key attention_bias stands for: q, k, v and the output."""
    has_bias = config.flag("attention_bias", False)
    return {"has_qkv_bias": has_bias, "has_output_bias": has_bias}


def layer_windows(
    config: JsonFile, window: int, has_window: Callable[[int], bool] = lambda _: True
) -> list[int]:
    """Window of every layer; empty if no layer has one.

    Args:
        config: config.json; its key layer_types, if there, says which layers have a window.
        window: positions that a token attends to, itself included; 0 for all.
        has_window: which layers have one where layer_types is missing.
    """
    num_layers = config.integer("num_hidden_layers")
    types = config.keys.get("layer_types")
    if types is None:
        windows = [window if has_window(layer) else 0 for layer in range(num_layers)]
    elif not isinstance(types, list):
        raise config.bad("layer_types", "is not a list", types)
    else:
        known = {"full_attention": 0, "sliding_attention": window}
        for name in types:
            if not isinstance(name, str) or name not in known:
                raise unsupported(config, "layer_types", str(name)[:80], ", ".join(known))
        windows = [known[name] for name in types]
    return windows if any(windows) else []


def sliding_window(config: JsonFile) -> int:
    """Key sliding_window; 0 where it is null or missing."""
    return config.integer("sliding_window", 0)


def chosen_window(config: JsonFile) -> int:
    """The same, 0 unless use_sliding_window is true."""
    return sliding_window(config) if config.flag("use_sliding_window", False) else 0


def experts(config: JsonFile, *, shared_size: int = 0) -> Experts:
    """The feed-forward experts by the keys that Qwen's families share."""
    count = config.integer("num_experts", config.integer("num_local_experts", 0))
    step = config.integer("decoder_sparse_step", 1)
    plain = config.integers("mlp_only_layers")
    if step < 1:
        raise config.bad("decoder_sparse_step", "is impossible", step)
    layers = range(config.integer("num_hidden_layers"))
    return Experts(
        num_experts=count,
        num_chosen=config.integer("num_experts_per_tok"),
        size=config.integer("moe_intermediate_size"),
        is_share_normalized=config.flag("norm_topk_prob", False),
        shared_size=shared_size,
        dense_layers=[layer for layer in layers if layer in plain or (layer + 1) % step],
    )


def _refuse_variants(config: JsonFile, handled: Collection[str]) -> None:
    if config.section("quantization_config") is not None:
        raise unsupported(config, "quantization_config", "quantized weights", "F32, F16, BF16")
    share = _rotary_share(config)
    if share != 1.0 and "partial_rotary_factor" not in handled:
        raise unsupported(config, "partial_rotary_factor", share, "1.0")
    if config.flag("use_bidirectional_attention", False):
        raise unsupported(config, "use_bidirectional_attention", "true", "false")


def _rotary_dim(config: JsonFile, head_dim: int) -> int:
    """Leading dimensions that are rotated; 0 for all."""
    share = _rotary_share(config)
    if share == 1.0:
        return 0
    if not 2.0 / max(head_dim, 2) <= share < 1.0:
        raise config.bad("partial_rotary_factor", "is impossible", share)
    return int(head_dim * share)


def _rotary_share(config: JsonFile) -> float:
    section = rope_section(config)
    share = section.real("partial_rotary_factor", config.real("partial_rotary_factor", 1.0))
    if not 0.0 < share <= 1.0:
        raise config.bad("partial_rotary_factor", "is impossible", share)
    return share


def _activation(config: JsonFile) -> Literal["silu", "gelu_tanh"]:
    key = "hidden_activation" if config.keys.get("hidden_activation") else "hidden_act"
    name = config.text(key, "silu")
    if name not in _ACTIVATIONS:
        raise unsupported(config, key, name, ", ".join(_ACTIVATIONS))
    return _ACTIVATIONS[name]


def _max_position(config: JsonFile, scaling: RopeScaling | None) -> int:
    length = config.integer("max_position_embeddings", 2048)
    if scaling is not None and scaling.type == "yarn":
        # Some models give the length before stretching here, some the one after it.
        stretched = min(scaling.original_max_position * scaling.factor, 2.0**62)
        length = max(length, math.floor(stretched))
    return length
