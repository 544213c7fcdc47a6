"""What Gemma 2 and Gemma 3 share beyond Llama."""

from __future__ import annotations

from typing import Any

from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.huggingface_config import attention_biases
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig

DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
}
HANDLED_KEYS = frozenset({"attn_logit_softcapping", "final_logit_softcapping"})


def from_huggingface(config: JsonFile, base: ModelConfig) -> dict[str, Any]:
    """Changes that both have, from config.json."""
    scalar = config.real("query_pre_attn_scalar")
    if scalar <= 0:
        raise config.bad("query_pre_attn_scalar", "is impossible", scalar)
    return {
        **attention_biases(config),
        "norm_offset": 1.0,
        "has_post_norms": True,
        "embedding_scale": base.hidden_size**0.5,
        "attention_scale": scalar**-0.5,
        "attention_softcap": config.real("attn_logit_softcapping", 0.0),
        "logit_softcap": config.real("final_logit_softcapping", 0.0),
    }


def from_gguf(keys: GgufKeys, base: ModelConfig, layers_of_27b: int) -> dict[str, Any]:
    """Changes that both have, from a GGUF file; its norms have their offset in them.

    The format has no key for query_pre_attn_scalar. It is the size of a head but in the models of
    27 billion weights, which llama.cpp knows by their depth.
    """
    scale = base.attention_scale
    if not scale and base.num_layers == layers_of_27b:
        scale = (base.hidden_size / base.num_heads) ** -0.5
    return {
        "activation": "gelu_tanh",
        "has_post_norms": True,
        "embedding_scale": base.hidden_size**0.5,
        "attention_scale": scale,
        "attention_softcap": keys.real("attn_logit_softcapping", 0.0),
        "logit_softcap": keys.real("final_logit_softcapping", 0.0),
    }
