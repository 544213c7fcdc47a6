"""config.json of a Hugging Face folder → ``ModelConfig``.

Key names and defaults after transformers' LlamaConfig, MistralConfig and Qwen2Config.
"""

from __future__ import annotations

import math

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import (
    ARCHITECTURES,
    MAX_EOS_IDS,
    ROPE_KINDS,
    ModelConfig,
    RopeKind,
    RopeScaling,
)

_SILU = ("silu", "swish")
_MISTRAL_WINDOW = 4096  # MistralConfig's default when the key is absent


def model_config(config: JsonFile, generation: JsonFile) -> ModelConfig:
    """The configuration that config.json and generation_config.json describe.

    Raises:
        UnsupportedModel: another architecture, or a variant that the Llama block does not cover.
        BadModelFile: a key is missing, of the wrong type, or impossible.
    """
    architecture = config.text("model_type", "")
    if architecture not in ARCHITECTURES:
        raise _unsupported(config, "model_type", architecture, ", ".join(ARCHITECTURES))
    _refuse_variants(config)
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    if num_heads < 1:
        raise config.bad("num_attention_heads", "is impossible", num_heads)
    has_attention_bias = architecture == "llama" and config.flag("attention_bias", False)
    eos_ids = [*generation.integers("eos_token_id"), *config.integers("eos_token_id")]
    bos_ids = [*config.integers("bos_token_id"), *generation.integers("bos_token_id")]
    rope_base, rope_scaling = _rope(config)
    result = ModelConfig(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=config.integer("head_dim", hidden_size // num_heads),
        max_position=_max_position(config, architecture, rope_scaling),
        rope_base=rope_base,
        rope_scaling=rope_scaling,
        rms_norm_eps=config.real("rms_norm_eps", 1e-6),
        is_embedding_tied=config.flag("tie_word_embeddings", False),
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=list(dict.fromkeys(eos_ids))[:MAX_EOS_IDS],
        has_qkv_bias=has_attention_bias or architecture == "qwen2",
        has_output_bias=has_attention_bias,
        has_mlp_bias=architecture == "llama" and config.flag("mlp_bias", False),
    )
    result.validate(str(config.path))
    return result


def _refuse_variants(config: JsonFile) -> None:
    if config.text("hidden_act", "silu") not in _SILU:
        raise _unsupported(config, "hidden_act", config.text("hidden_act", ""), "silu")
    if config.real("partial_rotary_factor", 1.0) != 1.0:
        factor = config.real("partial_rotary_factor")
        raise _unsupported(config, "partial_rotary_factor", factor, "1.0")
    if config.section("quantization_config") is not None:
        raise _unsupported(config, "quantization_config", "quantized weights", "F32, F16, BF16")


def _max_position(config: JsonFile, architecture: str, scaling: RopeScaling | None) -> int:
    """Context length; within its window, attention with a sliding window is plain."""
    length = config.integer("max_position_embeddings", 2048)
    if scaling is not None and scaling.type == "yarn":
        # Some models give the length before stretching here, some the one after it.
        length = max(length, math.floor(scaling.original_max_position * scaling.factor))
    is_windowed = architecture == "mistral" or (
        architecture == "qwen2" and config.flag("use_sliding_window", False)
    )
    if not is_windowed or config.keys.get("sliding_window", _MISTRAL_WINDOW) is None:
        return length
    return min(length, config.integer("sliding_window", _MISTRAL_WINDOW))


def _rope(config: JsonFile) -> tuple[float, RopeScaling | None]:
    """(base, scaling) from rope_parameters (transformers 5) or rope_theta + rope_scaling."""
    section = config.section("rope_parameters", "rope_scaling")
    base = config.real("rope_theta", 10_000.0)
    if section is None:
        return base, None
    base = section.real("rope_theta", base)
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return base, None
    kinds: dict[str, RopeKind] = {
        "linear": "linear",
        "llama3": "llama3",
        "yarn": "yarn",
        "dynamic": "dynamic",
    }
    if kind not in kinds:
        supported = ", ".join(name for name in ROPE_KINDS if name in kinds)
        raise _unsupported(config, "rope_scaling.rope_type", kind, supported)
    if section.real("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(config, "partial_rotary_factor", "not 1.0", "1.0")
    length = config.integer("max_position_embeddings", 2048)
    original = section.integer("original_max_position_embeddings", length)
    is_yarn = kind == "yarn"
    factor = section.real("factor", length / original if is_yarn and original > 0 else None)
    is_llama3 = kind == "llama3"
    scaling = RopeScaling(
        type=kinds[kind],
        factor=factor,
        original_max_position=original,
        low_freq_factor=section.real("low_freq_factor", None if is_llama3 else 1.0),
        high_freq_factor=section.real("high_freq_factor", None if is_llama3 else 4.0),
        beta_fast=section.real("beta_fast", 32.0),
        beta_slow=section.real("beta_slow", 1.0),
        attention_factor=_attention_factor(section, factor) if is_yarn else None,
        is_truncated=section.flag("truncate", True),
    )
    return base, scaling


def _attention_factor(section: JsonFile, factor: float) -> float | None:
    """yarn: given, or from mscale and mscale_all_dim, or None for the usual default."""
    if section.keys.get("attention_factor") is not None:
        return section.real("attention_factor")
    scale, scale_all = section.real("mscale", 0.0), section.real("mscale_all_dim", 0.0)
    if not scale or not scale_all or factor <= 1.0:
        return None
    return (0.1 * scale * math.log(factor) + 1.0) / (0.1 * scale_all * math.log(factor) + 1.0)


def _unsupported(
    config: JsonFile, key: str, value: str | float, limit: str | None = None
) -> UnsupportedModel:
    return UnsupportedModel(
        f"{key} of this model is not implemented",
        field=key,
        value=value or "nothing",
        limit=limit,
        remedy="Use an unquantized model of the Llama family",
        file=str(config.path),
    )
