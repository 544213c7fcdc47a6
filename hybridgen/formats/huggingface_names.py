"""Names of tensors in Hugging Face folders, as far as families share them."""

from __future__ import annotations

from hybridgen.formats.weight_parts import TensorNames
from hybridgen.models.weight_names import EMBEDDING, FINAL_NORM, LM_HEAD

#: Every projection as a tensor of its own; all other names are those of ``models.weight_names``.
SEPARATE = TensorNames(
    embedding=EMBEDDING,
    final_norm=FINAL_NORM,
    lm_head=LM_HEAD,
    layer="model.layers.{layer}.",
    modules={
        "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.shared_expert.gate_up_proj": (
            "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj",
        ),
    },
)
#: The same with one tensor for all experts of a layer (written by transformers 5).
STACKED_EXPERTS = SEPARATE
#: The same with tensors of each expert.
SEPARATE_EXPERTS = SEPARATE.changed(
    {
        "mlp.experts.gate_up_proj": (
            "mlp.experts.{expert}.gate_proj.weight",
            "mlp.experts.{expert}.up_proj.weight",
        ),
        "mlp.experts.down_proj": ("mlp.experts.{expert}.down_proj.weight",),
    }
)
#: Fused as we have them.
FUSED = SEPARATE._replace(modules={})
