"""Gemma 2: norms on both sides, capped scores and logits, a window in every other layer.

The technical report is arXiv 2408.00118.
"""

from __future__ import annotations

from hybridgen.formats.families import gemma
from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_config import patterned_windows
from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.gguf_names import POST_NORMS
from hybridgen.formats.huggingface_config import layer_windows, sliding_window
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig

_PERIOD = 2
_WINDOW = 4096
_ATTENTION_SOFTCAP = 50.0
_LOGIT_SOFTCAP = 30.0


def _from_huggingface(config: JsonFile, base: ModelConfig) -> Changes:
    window = sliding_window(config)
    return {
        **gemma.from_huggingface(config, base),
        "layer_windows": layer_windows(config, window, lambda layer: (layer + 1) % _PERIOD > 0),
    }


def _from_gguf(keys: GgufKeys, base: ModelConfig) -> Changes:
    return {
        **gemma.from_gguf(keys, base, layers_of_27b=46),
        "attention_softcap": keys.real("attn_logit_softcapping", _ATTENTION_SOFTCAP),
        "logit_softcap": keys.real("final_logit_softcapping", _LOGIT_SOFTCAP),
        "layer_windows": patterned_windows(keys, base, window=_WINDOW, period=_PERIOD),
    }


GEMMA2 = Family(
    name="gemma2",
    model_types=("gemma2",),
    gguf_architecture="gemma2",
    defaults={
        **gemma.DEFAULTS,
        "max_position_embeddings": 8192,
        "sliding_window": _WINDOW,
        "attn_logit_softcapping": _ATTENTION_SOFTCAP,
        "final_logit_softcapping": _LOGIT_SOFTCAP,
    },
    handled_keys=gemma.HANDLED_KEYS,
    from_huggingface=_from_huggingface,
    from_gguf=_from_gguf,
    gguf_names=POST_NORMS,
)
