"""Phi-3, 3.5 and 4-mini: Llama with fused projections, longrope, and a part of each head rotated.

The technical report is arXiv 2404.14219.
"""

from __future__ import annotations

from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_names import STANDARD
from hybridgen.formats.huggingface_config import layer_windows, sliding_window, unsupported
from hybridgen.formats.huggingface_names import FUSED
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig


def _from_huggingface(config: JsonFile, base: ModelConfig) -> Changes:
    scaling = base.rope_scaling
    if scaling is not None and scaling.type != "longrope":
        raise unsupported(config, "rope_scaling.rope_type", scaling.type, "default, longrope")
    return {"layer_windows": layer_windows(config, sliding_window(config))}


PHI3 = Family(
    name="phi3",
    model_types=("phi3",),
    gguf_architecture="phi3",
    defaults={
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    handled_keys=frozenset({"partial_rotary_factor", "rope.dimension_count"}),
    from_huggingface=_from_huggingface,
    huggingface_names=(FUSED,),
    gguf_names=STANDARD.changed(
        {"self_attn.qkv_proj": ("attn_qkv",), "mlp.gate_up_proj": ("ffn_up",)}
    ),
)
