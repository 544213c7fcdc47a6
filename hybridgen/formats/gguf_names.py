"""Names of tensors in GGUF files, after the specification's list of standardized names."""

from __future__ import annotations

from hybridgen.formats.weight_parts import TensorNames

#: Divisors of the rotary frequencies; a part of the configuration, not a weight.
ROPE_FACTORS = "rope_freqs.weight"
#: The same for contexts longer than that of the training, and for others.
LONG_ROPE_FACTORS = "rope_factors_long.weight"
SHORT_ROPE_FACTORS = "rope_factors_short.weight"
NOT_WEIGHTS = frozenset({ROPE_FACTORS, LONG_ROPE_FACTORS, SHORT_ROPE_FACTORS})

STANDARD = TensorNames(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    lm_head="output.weight",
    layer="blk.{layer}.",
    modules={
        "input_layernorm": ("attn_norm",),
        "self_attn.qkv_proj": ("attn_q", "attn_k", "attn_v"),
        "self_attn.q_norm": ("attn_q_norm",),
        "self_attn.k_norm": ("attn_k_norm",),
        "self_attn.o_proj": ("attn_output",),
        "post_attention_layernorm": ("ffn_norm",),
        "mlp.gate_up_proj": ("ffn_gate", "ffn_up"),
        "mlp.down_proj": ("ffn_down",),
        "mlp.gate": ("ffn_gate_inp",),
        "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
        "mlp.experts.down_proj": ("ffn_down_exps.weight",),
        "mlp.shared_expert.gate_up_proj": ("ffn_gate_shexp", "ffn_up_shexp"),
        "mlp.shared_expert.down_proj": ("ffn_down_shexp",),
        "mlp.shared_expert_gate": ("ffn_gate_inp_shexp",),
    },
    is_squeezed=True,
)
#: Llama, Mistral and Mixtral, which are converted for a rotation of neighbouring rows.
PERMUTED = STANDARD._replace(is_permuted=True)
#: Gemma: with norms behind both halves of a block.
POST_NORMS = STANDARD.changed(
    {
        "post_attention_layernorm": ("post_attention_norm",),
        "pre_feedforward_layernorm": ("ffn_norm",),
        "post_feedforward_layernorm": ("post_ffw_norm",),
    }
)
