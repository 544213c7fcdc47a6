"""Names and shapes of a model's weights, fused as the products take them.

Top: ``model.embed_tokens.weight``, ``model.norm.weight``, ``lm_head.weight`` unless tied. Below
``model.layers.N.``, matrices (out, in):

=========================================  =====================================================
input_layernorm.weight                     before attention
self_attn.qkv_proj.weight / .bias          q heads, k heads, v heads below each other
self_attn.q_norm.weight, k_norm.weight     of one head each
self_attn.o_proj.weight / .bias
post_attention_layernorm.weight            before the feed-forward block; with ``has_post_norms``
                                           behind attention, as that family calls it
pre_feedforward_layernorm.weight           before the block, with ``has_post_norms``
post_feedforward_layernorm.weight          behind it
mlp.gate_up_proj.weight / .bias            gates, then ups
mlp.down_proj.weight / .bias
mlp.gate.weight                            the router, (experts, hidden)
mlp.experts.gate_up_proj                   (experts, 2 · size, hidden), gates, then ups
mlp.experts.down_proj                      (experts, hidden, size)
mlp.shared_expert.gate_up_proj.weight      and down_proj.weight, of the shared expert
mlp.shared_expert_gate.weight              (1, hidden)
=========================================  =====================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridgen.models.config import Experts, ModelConfig

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


def layer_prefix(layer: int) -> str:
    """Of the third block ``model.layers.2.``."""
    return f"model.layers.{layer}."


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name → shape of every weight, in the order of the forward pass."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        parts = _attention_shapes(config) | _block_shapes(config, layer)
        shapes |= {layer_prefix(layer) + name: shape for name, shape in parts.items()}
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.is_embedding_tied:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight becomes INT8 where weights do.

    Not the embedding, and not what chooses experts: a rounded logit there is another expert.
    """
    is_router = name.endswith((".mlp.gate.weight", ".mlp.shared_expert_gate.weight"))
    return len(shape) > 1 and name != EMBEDDING and not is_router


def _attention_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.qkv_proj.weight": (config.qkv_size, hidden),
    }
    if config.has_qkv_bias:
        shapes["self_attn.qkv_proj.bias"] = (config.qkv_size,)
    if config.has_qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    shapes["self_attn.o_proj.weight"] = (hidden, config.q_size)
    if config.has_output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    shapes["post_attention_layernorm.weight"] = (hidden,)
    return shapes


def _block_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, Shape] = {}
    if config.has_post_norms:
        shapes["pre_feedforward_layernorm.weight"] = (hidden,)
    if config.experts is not None and config.has_experts(layer):
        shapes |= _expert_shapes(config.experts, hidden)
    else:
        shapes["mlp.gate_up_proj.weight"] = (2 * inner, hidden)
        if config.has_mlp_bias:
            shapes["mlp.gate_up_proj.bias"] = (2 * inner,)
        shapes["mlp.down_proj.weight"] = (hidden, inner)
        if config.has_mlp_bias:
            shapes["mlp.down_proj.bias"] = (hidden,)
    if config.has_post_norms:
        shapes["post_feedforward_layernorm.weight"] = (hidden,)
    return shapes


def _expert_shapes(experts: Experts, hidden: int) -> dict[str, Shape]:
    count, inner, shared = experts.num_experts, experts.size, experts.shared_size
    shapes: dict[str, Shape] = {
        "mlp.gate.weight": (count, hidden),
        "mlp.experts.gate_up_proj": (count, 2 * inner, hidden),
        "mlp.experts.down_proj": (count, hidden, inner),
    }
    if shared:
        shapes["mlp.shared_expert.gate_up_proj.weight"] = (2 * shared, hidden)
        shapes["mlp.shared_expert.down_proj.weight"] = (hidden, shared)
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    return shapes
