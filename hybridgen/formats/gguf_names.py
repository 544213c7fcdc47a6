"""Names of Llama tensors: Hugging Face's, which we use, and GGUF's.

GGUF names after the specification's list of standardized tensor names.
"""

from __future__ import annotations

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_PREFIX = "model.layers."
#: Divisors of the rotary frequencies; a part of the configuration, not a weight.
ROPE_FACTORS = "rope_freqs.weight"
#: Architectures whose q and k rows GGUF stores permuted for interleaved rotation.
PERMUTED_ARCHITECTURES = frozenset({"llama", "mistral"})


def gguf_name(name: str) -> str:
    """``model.layers.3.self_attn.q_proj.weight`` → ``blk.3.attn_q.weight``."""
    if not name.startswith(_LAYER_PREFIX):
        return _TOP[name]
    layer, rest = name.removeprefix(_LAYER_PREFIX).split(".", 1)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_IN_LAYER[module]}.{kind}"


def permuted_heads(name: str, num_heads: int, num_kv_heads: int) -> int:
    """Heads whose rows GGUF permutes in the tensor with this Hugging Face name; 0 if none."""
    if ".self_attn.q_proj." in name:
        return num_heads
    return num_kv_heads if ".self_attn.k_proj." in name else 0
