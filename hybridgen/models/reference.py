"""The whole block in plain torch: what the kernels must equal. For tests, never for serving.

One sequence, no cache, no paging; every operation takes the dtype of its inputs, so float64
inputs make a reference that is exact for all purposes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import linear

from hybridgen.models.config import Experts, ModelConfig
from hybridgen.models.rope import RopeTable, build_rope_table
from hybridgen.models.weight_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix

Tensors = Mapping[str, torch.Tensor]
#: Cosines and sines [n, rotary_size / 2].
Rope = tuple[torch.Tensor, torch.Tensor]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Root-mean-square normalization of x [..., size]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up (Shazeer 2020)."""
    return gate * torch.sigmoid(gate) * up


def geglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) · up, gelu by its tanh formula (Hendrycks & Gimpel 2016)."""
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """X bounded as cap · tanh(x / cap); x itself where cap is 0."""
    return cap * torch.tanh(x / cap) if cap else x


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of the leading dimensions of each head.

    x [n, heads, head_dim], tables [n, rotary_size / 2].
    """
    half = cosines.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cosines[:, None], sines[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float = 0.0,
    cap: float = 0.0,
    window: int = 0,
) -> torch.Tensor:
    """Causal attention; q [n, heads, d] are the last n of the m positions of k, v [m, kv, d].

    Scores are q · k · ``scale`` (0: d^-½), capped by ``cap``; a query sees ``window`` positions
    with its own (0: all).
    """
    num_queries, num_heads, head_dim = q.shape
    num_positions, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = softcap(torch.einsum("nhd,mhd->hnm", q, k) * (scale or head_dim**-0.5), cap)
    positions = torch.arange(num_positions)
    distance = positions[num_positions - num_queries :, None] - positions
    is_hidden = (distance < 0) | (distance >= (window or num_positions))
    weights = scores.masked_fill(is_hidden, -torch.inf).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, v)


def reference_logits(
    config: ModelConfig,
    tensors: Tensors,
    ids: torch.Tensor,
    dtype: torch.dtype = torch.float64,
    *,
    max_positions: int = 0,
) -> torch.Tensor:
    """Logits [n, vocab_size] at every position of ``ids`` int64[n].

    ``max_positions`` is the served context, 0 for all that the model was made for.
    """
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    num_positions = max_positions or config.max_position
    ropes = [
        _first_rows(build_rope_table(config, num_positions, is_local=is_local), len(ids), dtype)
        for is_local in ([False, True] if config.local_rope_base else [False])
    ]
    hidden = tensors[EMBEDDING][ids] * config.embedding_scale
    for layer in range(config.num_layers):
        block = _Block(config, tensors, layer)
        hidden = block.output(hidden, ropes[config.has_local_rope(layer)])
    hidden = rms_norm(hidden, tensors[FINAL_NORM] + config.norm_offset, config.rms_norm_eps)
    head = tensors[EMBEDDING if config.is_embedding_tied else LM_HEAD]
    return softcap(hidden @ head.T, config.logit_softcap)


def _first_rows(table: RopeTable, num_rows: int, dtype: torch.dtype) -> Rope:
    cosines, sines = (torch.from_numpy(part[:num_rows]).to(dtype) for part in table)
    return cosines, sines


class _Block:
    """One layer."""

    def __init__(self, config: ModelConfig, tensors: Tensors, layer: int) -> None:
        self._config = config
        self._layer = layer
        prefix = layer_prefix(layer)
        self._tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }

    def output(self, hidden: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Residual stream [n, hidden_size] in, the same out."""
        attended = self._attention(self._norm(hidden, "input_layernorm"), rope)
        if not self._config.has_post_norms:
            hidden = hidden + attended
            return hidden + self._feed_forward(self._norm(hidden, "post_attention_layernorm"))
        hidden = hidden + self._norm(attended, "post_attention_layernorm")
        inner = self._feed_forward(self._norm(hidden, "pre_feedforward_layernorm"))
        return hidden + self._norm(inner, "post_feedforward_layernorm")

    def _attention(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        config = self._config
        heads = self._project(x, "self_attn.qkv_proj").view(len(x), -1, config.head_dim)
        q, k, v = torch.split(heads, [config.num_heads, *[config.num_kv_heads] * 2], dim=1)
        if config.has_qk_norm:
            q, k = self._norm(q, "self_attn.q_norm"), self._norm(k, "self_attn.k_norm")
        attended = attention(
            rotate(q, *rope),
            rotate(k, *rope),
            v,
            scale=config.score_scale,
            cap=config.attention_softcap,
            window=config.window(self._layer),
        )
        return self._project(attended.flatten(-2), "self_attn.o_proj")

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        experts = self._config.experts
        if experts is not None and self._config.has_experts(self._layer):
            return self._mixture(x, experts)
        return self._project(self._gate(self._project(x, "mlp.gate_up_proj")), "mlp.down_proj")

    def _mixture(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        """See ``Experts``."""
        shares = self._project(x, "mlp.gate").softmax(-1)
        chosen = shares.sort(dim=-1, descending=True, stable=True).indices[:, : experts.num_chosen]
        taken = torch.zeros_like(shares).scatter(1, chosen, shares.gather(1, chosen))
        if experts.is_share_normalized:
            taken = taken / taken.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in range(experts.num_experts):
            gate_up, down = (
                self._tensors[f"mlp.experts.{name}_proj"][expert] for name in ("gate_up", "down")
            )
            out = out + taken[:, expert, None] * linear(self._gate(linear(x, gate_up)), down)
        if experts.shared_size:
            inner = self._gate(self._project(x, "mlp.shared_expert.gate_up_proj"))
            shared = self._project(inner, "mlp.shared_expert.down_proj")
            out = out + torch.sigmoid(self._project(x, "mlp.shared_expert_gate")) * shared
        return out

    def _gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        activate = geglu if self._config.activation == "gelu_tanh" else swiglu
        return activate(*gate_up.chunk(2, dim=-1))

    def _project(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self._tensors[f"{name}.weight"], self._tensors.get(f"{name}.bias"))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self._tensors[f"{name}.weight"] + self._config.norm_offset
        return rms_norm(x, weight, self._config.rms_norm_eps)
