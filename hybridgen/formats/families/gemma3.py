"""Gemma 3, of models with images the text part: five layers with a window, then one without.

Layers with a window rotate with a base of their own and no scaling (arXiv 2503.19786).
"""

from __future__ import annotations

from hybridgen.formats.families import gemma
from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_config import patterned_windows, round_f32
from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.gguf_names import POST_NORMS
from hybridgen.formats.huggingface_config import layer_windows, sliding_window, unsupported
from hybridgen.formats.huggingface_names import SEPARATE
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig

_PERIOD = 6
_LOCAL_ROPE_BASE = 10_000.0
#: Keys that belong to the text but stand beside text_config.
_SHARED_KEYS = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")


def _text_config(config: JsonFile) -> JsonFile:
    """The keys of the text model, with the rotation of its full layers as the usual one."""
    text = config.section("text_config")
    keys = config.keys
    if text is not None:
        shared = {key: keys[key] for key in _SHARED_KEYS if keys.get(key) is not None}
        keys = {**shared, **text.keys}
    by_type = JsonFile(config.path, keys).section("rope_parameters")
    if by_type is None or not {"full_attention", "sliding_attention"} & by_type.keys.keys():
        return JsonFile(config.path, keys)
    local = by_type.section("sliding_attention") or JsonFile(config.path, {})
    kind = local.text("rope_type", "default")
    if kind != "default":
        raise unsupported(config, "rope_parameters.sliding_attention", kind, "default")
    return JsonFile(
        config.path,
        {
            **keys,
            "rope_parameters": by_type.keys.get("full_attention"),
            "rope_local_base_freq": local.keys.get("rope_theta"),
        },
    )


def _from_huggingface(config: JsonFile, base: ModelConfig) -> Changes:
    period = config.integer("sliding_window_pattern", _PERIOD)
    if period < 1:
        raise config.bad("sliding_window_pattern", "is impossible", period)
    window = sliding_window(config)
    return {
        **gemma.from_huggingface(config, base),
        "has_qk_norm": True,
        "local_rope_base": config.real("rope_local_base_freq", _LOCAL_ROPE_BASE),
        "layer_windows": layer_windows(config, window, lambda layer: (layer + 1) % period > 0),
    }


def _from_gguf(keys: GgufKeys, base: ModelConfig) -> Changes:
    return {
        **gemma.from_gguf(keys, base, layers_of_27b=62),
        "has_qk_norm": True,
        "local_rope_base": round_f32(keys.real("rope.freq_base_swa", _LOCAL_ROPE_BASE)),
        "layer_windows": patterned_windows(keys, base, window=0, period=_PERIOD),
    }


GEMMA3 = Family(
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    gguf_architecture="gemma3",
    defaults={
        **gemma.DEFAULTS,
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "sliding_window": 4096,
    },
    handled_keys=gemma.HANDLED_KEYS,
    text_config=_text_config,
    from_huggingface=_from_huggingface,
    from_gguf=_from_gguf,
    huggingface_names=(
        SEPARATE,
        SEPARATE.below("language_model."),
        SEPARATE._replace(
            embedding="model.language_model.embed_tokens.weight",
            final_norm="model.language_model.norm.weight",
            layer="model.language_model.layers.{layer}.",
        ),
    ),
    gguf_names=POST_NORMS,
    spare_prefixes=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
)
