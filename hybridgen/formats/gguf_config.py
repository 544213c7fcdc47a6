"""What GGUF metadata says in the same way for all families → ``ModelConfig``.

Key names after the GGUF specification. What sets a family apart, its file in ``families`` adds.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.gguf_names import LONG_ROPE_FACTORS, ROPE_FACTORS, SHORT_ROPE_FACTORS
from hybridgen.formats.model_file import bad_field
from hybridgen.models.config import Experts, ModelConfig, RopeKind, RopeScaling

_MAX_LAYERS = 1024  # of config_check, which comes after: no longer list is worth making
#: Keys that change the arithmetic unless they have one of these values. A family that knows what
#: to do with one says so in ``Family.handled_keys``.
_FOREIGN_KEYS: dict[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "expert_gating_func": (0, 1),  # 1 is softmax
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}


def base_config(keys: GgufKeys, family: str, handled: Collection[str]) -> ModelConfig:
    """A Llama-like ``ModelConfig`` of the family's name; to be validated.

    Raises:
        UnsupportedModel: a key that is neither idle nor ``handled``.
        BadModelFile: a key is missing, of the wrong type, or impossible.
    """
    for key, idle in _FOREIGN_KEYS.items():
        value = keys.gguf.metadata.get(f"{keys.architecture}.{key}")
        if value is not None and value not in idle and key not in handled:
            raise keys.unsupported(key, str(value)[:80])
    tensors = keys.gguf.tensors
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise bad_field(keys.gguf.path, "token_embd.weight", "is missing or no matrix")
    num_heads = keys.per_layer("attention.head_count")
    if num_heads < 1:
        raise bad_field(keys.gguf.path, "attention.head_count", "is impossible", num_heads)
    hidden_size = keys.integer("embedding_length")
    head_dim = _head_dim(keys, hidden_size // num_heads)
    num_layers = keys.integer("block_count")
    window = keys.integer("attention.sliding_window", 0)
    return ModelConfig(
        architecture=family,
        vocab_size=embedding.shape[0],
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=keys.per_layer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=keys.per_layer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=keys.integer("context_length"),
        rope_base=keys.real("rope.freq_base", 10_000.0),
        rope_scaling=_rope_scaling(keys),
        rotary_dim=_rotary_dim(keys, head_dim, handled),
        layer_windows=[window] * min(num_layers, _MAX_LAYERS) if window > 0 else [],
        rms_norm_eps=round_f32(keys.real("attention.layer_norm_rms_epsilon")),
        attention_scale=keys.real("attention.scale", 0.0),
        is_embedding_tied="output.weight" not in tensors,
        has_qkv_bias="blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        has_output_bias="blk.0.attn_output.bias" in tensors,
        has_mlp_bias="blk.0.ffn_up.bias" in tensors,
    )


def patterned_windows(keys: GgufKeys, base: ModelConfig, *, window: int, period: int) -> list[int]:
    """Window of every layer where each ``period``-th has none.

    Args:
        keys: of the file; ``attention.sliding_window_pattern`` overrules ``period``.
        base: from ``base_config``.
        window: where ``attention.sliding_window`` is missing.
        period: see above.
    """
    key = "attention.sliding_window_pattern"
    size, period = keys.integer("attention.sliding_window", window), keys.integer(key, period)
    if period < 1:
        raise keys.bad(key, "is impossible", period)
    layers = range(1, base.num_layers + 1)
    windows = [size if layer % period else 0 for layer in layers]
    return windows if any(windows) else []


def experts(
    keys: GgufKeys, base: ModelConfig, *, size: int, is_share_normalized: bool, shared_size: int = 0
) -> Experts:
    """The feed-forward experts; a layer without a router is a plain one.

    Args:
        keys: of the file.
        base: from ``base_config``.
        size: of one expert where ``expert_feed_forward_length`` is missing.
        is_share_normalized: where ``expert_weights_norm`` is missing.
        shared_size: of the shared expert, 0 for none.
    """
    tensors = keys.gguf.tensors
    layers = range(base.num_layers)
    return Experts(
        num_experts=keys.integer("expert_count"),
        num_chosen=keys.integer("expert_used_count"),
        size=keys.per_layer("expert_feed_forward_length", size),
        is_share_normalized=keys.flag("expert_weights_norm", is_share_normalized),
        shared_size=shared_size,
        dense_layers=[i for i in layers if f"blk.{i}.ffn_gate_inp.weight" not in tensors],
    )


def round_f32(number: float) -> float:
    """The shortest decimal that a float32 stands for: 9.99999974e-06 → 1e-05."""
    return float(f"{number:.7g}")


def _head_dim(keys: GgufKeys, default: int) -> int:
    head_dim = keys.integer("attention.key_length", default)
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        limit = f"attention.key_length = {head_dim}"
        raise keys.unsupported("attention.value_length", value_dim, limit)
    return head_dim


def _rotary_dim(keys: GgufKeys, head_dim: int, handled: Collection[str]) -> int:
    """Leading dimensions that are rotated; 0 for all."""
    key = "rope.dimension_count"
    rotary_dim = keys.integer(key, head_dim)
    if rotary_dim == head_dim:
        return 0
    if key not in handled:
        raise keys.unsupported(key, rotary_dim, f"the head's size {head_dim}")
    if rotary_dim < 1:
        raise keys.bad(key, "is impossible", rotary_dim)
    return rotary_dim


def _rope_scaling(keys: GgufKeys) -> RopeScaling | None:
    kinds: dict[str, RopeKind] = {"linear": "linear", "yarn": "yarn"}
    if ROPE_FACTORS in keys.gguf.tensors:
        return RopeScaling(type="factors", freq_factors=keys.factors(ROPE_FACTORS))
    if LONG_ROPE_FACTORS in keys.gguf.tensors:
        return _longrope(keys)
    kind = keys.text("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind not in kinds:
        raise keys.unsupported("rope.scaling.type", kind, "none, linear, yarn")
    scaling = RopeScaling(
        type=kinds[kind],
        factor=factor,
        original_max_position=keys.integer("rope.scaling.original_context_length", 0),
        beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
    )
    extra = keys.real("rope.scaling.attn_factor", 1.0)
    if kind == "linear" or extra == 1.0:
        return scaling
    # The format's factor comes on top of yarn's own.
    total = extra * scaling.effective_attention_factor
    return msgspec.structs.replace(scaling, attention_factor=total)


def _longrope(keys: GgufKeys) -> RopeScaling:
    length = keys.integer("context_length")
    original = keys.integer("rope.scaling.original_context_length", length)
    return RopeScaling(
        type="longrope",
        factor=max(1.0, length / original) if original > 0 else 1.0,
        original_max_position=original,
        attention_factor=round_f32(keys.real("rope.scaling.attn_factor", 1.0)),
        freq_factors=keys.factors(LONG_ROPE_FACTORS),
        short_factors=keys.factors(SHORT_ROPE_FACTORS),
    )
