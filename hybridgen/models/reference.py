"""The Llama family in plain torch: what the kernels must equal. For tests, never for serving.

One sequence, no cache, no paging; every operation takes the dtype of its inputs, so float64
inputs make a reference that is exact for all purposes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hybridgen.models.config import ModelConfig
from hybridgen.models.rope import build_rope_table

Tensors = Mapping[str, torch.Tensor]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Root-mean-square normalization of x [n, size]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up (Shazeer 2020)."""
    return gate * torch.sigmoid(gate) * up


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of each head: x [n, heads, head_dim], tables [n, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cosines[:, None], sines[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention; q [n, heads, d] are the last n of the m positions of k, v [m, kv, d]."""
    num_queries, num_heads, head_dim = q.shape
    num_positions, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) * head_dim**-0.5
    future = torch.ones(num_queries, num_positions, dtype=torch.bool).triu(
        num_positions - num_queries + 1
    )
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, v)


def llama_logits(
    config: ModelConfig, tensors: Tensors, ids: torch.Tensor, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Logits [n, vocab_size] at every position of ``ids`` int64[n]."""
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    table = build_rope_table(config, len(ids))
    rope = (torch.from_numpy(table.cosines).to(dtype), torch.from_numpy(table.sines).to(dtype))
    hidden = tensors["model.embed_tokens.weight"][ids]
    for layer in range(config.num_layers):
        hidden = _block(config, tensors, f"model.layers.{layer}.", hidden, rope)
    hidden = rms_norm(hidden, tensors["model.norm.weight"], config.rms_norm_eps)
    head = "model.embed_tokens.weight" if config.is_embedding_tied else "lm_head.weight"
    return hidden @ tensors[head].T


def _block(
    config: ModelConfig,
    tensors: Tensors,
    prefix: str,
    hidden: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    def project(x: torch.Tensor, name: str) -> torch.Tensor:
        bias = tensors.get(f"{prefix}{name}.bias")
        return torch.nn.functional.linear(x, tensors[f"{prefix}{name}.weight"], bias)

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1, config.head_dim)

    epsilon = config.rms_norm_eps
    x = rms_norm(hidden, tensors[prefix + "input_layernorm.weight"], epsilon)
    q, k, v = (heads(project(x, f"self_attn.{name}_proj")) for name in "qkv")
    attended = attention(rotate(q, *rope), rotate(k, *rope), v).flatten(-2)
    hidden = hidden + project(attended, "self_attn.o_proj")
    x = rms_norm(hidden, tensors[prefix + "post_attention_layernorm.weight"], epsilon)
    inner = swiglu(project(x, "mlp.gate_proj"), project(x, "mlp.up_proj"))
    return hidden + project(inner, "mlp.down_proj")
