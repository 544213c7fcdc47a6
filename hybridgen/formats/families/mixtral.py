"""Mixtral: Mistral with experts in place of the feed-forward block (arXiv 2401.04088)."""

from __future__ import annotations

from hybridgen.formats.families.family import Changes, Family
from hybridgen.formats.gguf_config import experts
from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.gguf_names import PERMUTED
from hybridgen.formats.huggingface_config import layer_windows, sliding_window
from hybridgen.formats.huggingface_names import STACKED_EXPERTS
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import Experts, ModelConfig

_NAMES = STACKED_EXPERTS.changed(
    {
        "mlp.gate": ("block_sparse_moe.gate",),
        "mlp.experts.gate_up_proj": (
            "block_sparse_moe.experts.{expert}.w1.weight",
            "block_sparse_moe.experts.{expert}.w3.weight",
        ),
        "mlp.experts.down_proj": ("block_sparse_moe.experts.{expert}.w2.weight",),
    }
)


def _from_huggingface(config: JsonFile, base: ModelConfig) -> Changes:
    return {
        "layer_windows": layer_windows(config, sliding_window(config)),
        "experts": Experts(
            num_experts=config.integer("num_local_experts"),
            num_chosen=config.integer("num_experts_per_tok"),
            size=base.intermediate_size,
        ),
    }


def _from_gguf(keys: GgufKeys, base: ModelConfig) -> Changes:
    size = base.intermediate_size
    return {"experts": experts(keys, base, size=size, is_share_normalized=True)}


MIXTRAL = Family(
    name="mixtral",
    model_types=("mixtral",),
    gguf_architecture="llama",
    has_gguf_experts=True,
    defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
    },
    handled_keys=frozenset({"expert_count"}),
    from_huggingface=_from_huggingface,
    from_gguf=_from_gguf,
    huggingface_names=(_NAMES, STACKED_EXPERTS),
    gguf_names=PERMUTED,
)
