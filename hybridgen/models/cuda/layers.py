"""The operations that a block is made of, on the device.

One narrow door: a step calls these and nothing else, so each can be replaced on its own.
``TritonLayers`` (``triton_layers.py``) is what serves; ``TorchLayers`` is plain torch, right for
every dtype on any device, and slow: tests and ``tools.bench_step --layers torch`` use it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  the usual name

from hybridgen.errors import InternalError
from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.int8_rows import dequantize_rows
from hybridgen.models.cuda.rope_tables import RopeTables
from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.kernels.paged_cache import PagedCache


class Projection(NamedTuple):
    """A matrix product with what always goes with it: ``LinearWeights``, without need of Triton.

    Attributes:
        weight: [num_rows, size]; gated: [2 num_rows, size], gates first, and the result is
            silu(gates) · ups.
        scales: float32 per weight row, for int8 weights.
        bias: per weight row.
        is_gated: see ``weight``.
        norm: [size], weight of a norm of x before the product.
        epsilon: of both norms.
        is_gelu: gates go through gelu (by tanh) instead of silu.
        post_norm: [num_rows], weight of a norm of the product, before a residual is added.
        softcap: c > 0: results y become c · tanh(y / c).
    """

    weight: torch.Tensor
    scales: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    is_gated: bool = False
    norm: torch.Tensor | None = None
    epsilon: float = 1e-5
    is_gelu: bool = False
    post_norm: torch.Tensor | None = None
    softcap: float = 0.0


class Routing(NamedTuple):
    """How tokens choose among the experts of a block (``Experts`` of the configuration).

    Attributes:
        router: one output for each expert; behind them, with a shared expert, its gate.
        num_chosen: experts that a token takes.
        is_share_normalized: chosen shares are divided by their sum.
        shared: every token's expert, without norms.
    """

    router: Projection
    num_chosen: int
    is_share_normalized: bool
    shared: FeedForward | None = None


class FeedForward(NamedTuple):
    """A feed-forward block, plain or of experts.

    Attributes:
        gate_up: gated, behind the norm of the block.
        down: before a norm, if there is one behind the block.
        routing: of a block of experts; then weights are [num_experts, num_rows, size], scales
            [num_experts, num_rows], and there are no biases.
    """

    gate_up: Projection
    down: Projection
    routing: Routing | None = None


class Layers(Protocol):
    """What a step is made of; results go to ``out``, nothing waits for the device."""

    def embed(self, ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """out[i] = table[ids[i]] · embedding_scale; ids outside the table are clamped into it.

        Args:
            ids: int32[n].
            table: [vocab_size, hidden_size].
            out: [n, hidden_size].
        """
        ...

    def project(
        self,
        x: torch.Tensor,
        projection: Projection,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> None:
        """Store (residual +) the projection of x [n, size]; ``residual`` may be ``out``."""
        ...

    def mix(
        self,
        x: torch.Tensor,
        block: FeedForward,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Store (residual +) what a block of experts makes of x [n, size].

        Args:
            x: input, not normed.
            block: with ``routing``.
            out: [n, size].
            residual: [n, size]; may be ``out``.
            positions: int32[n], below 0 for idle rows, which choose nobody; None: there are none.
        """
        ...

    def attend(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor,
        positions: torch.Tensor,
        tables: torch.Tensor,
        *,
        heads: HeadOptions = PLAIN_HEADS,
    ) -> None:
        """Rotate, store and attend for one new token of each row; positions below 0 are idle.

        Args:
            qkv: [n, (num_heads + 2 num_kv_heads) head_dim], not rotated.
            cache: keys and values of the layer.
            out: [n, num_heads · head_dim].
            positions: int32[n].
            tables: int32[n, w], KV blocks of each row; those before a window may be anyone's.
            heads: of the layer.
        """
        ...

    def store(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        positions: torch.Tensor,
        places: torch.Tensor,
        *,
        heads: HeadOptions = PLAIN_HEADS,
    ) -> None:
        """Norm and rotate queries and keys of qkv in place; write keys and values to their places.

        Args:
            qkv: [n, (num_heads + 2 num_kv_heads) head_dim].
            cache: keys and values of the layer.
            positions: int32[n]; below 0 for rows to leave out.
            places: int32[n], block · block_size + offset in it.
            heads: of the layer.
        """
        ...


def feed_forward(
    layers: Layers,
    block: FeedForward,
    hidden: torch.Tensor,
    inner: torch.Tensor,
    positions: torch.Tensor | None = None,
) -> None:
    """Add to ``hidden`` what the block makes of it.

    Args:
        layers: operations.
        block: plain or of experts.
        hidden: [n, hidden_size].
        inner: [n, intermediate_size], scratch of a plain block.
        positions: see ``Layers.mix``.
    """
    if block.routing is None:
        layers.project(hidden, block.gate_up, inner)
        layers.project(inner, block.down, hidden, hidden)
    else:
        layers.mix(hidden, block, hidden, hidden, positions)


class TorchLayers:
    """Plain torch.

    Args:
        config: the model.
        ropes: cosines and sines.
    """

    def __init__(self, config: ModelConfig, ropes: RopeTables) -> None:
        self._num_heads = config.num_heads
        self._embedding_scale = config.embedding_scale
        self._ropes = ropes

    def embed(self, ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Layers``."""
        rows = table[ids.clamp(0, len(table) - 1).long()]
        out.copy_(rows.float() * self._embedding_scale)

    def project(
        self,
        x: torch.Tensor,
        projection: Projection,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> None:
        """See ``Layers``."""
        y = _product(x, projection)
        out.copy_(y if residual is None else y + residual)

    def mix(
        self,
        x: torch.Tensor,
        block: FeedForward,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> None:
        """See ``Layers``; every expert computes every row, and counts where it was chosen."""
        gate_up, down, routing = block
        if routing is None:
            raise InternalError("a plain block has no experts to mix")
        if gate_up.norm is not None:
            x = _normed(x, gate_up.norm, gate_up.epsilon)
        num_experts = len(down.weight)
        logits = _product(x, routing.router).float()
        shares = logits[:, :num_experts].softmax(-1)
        order = shares.sort(dim=-1, descending=True, stable=True).indices
        chosen = order[:, : routing.num_chosen]
        taken = torch.zeros_like(shares).scatter(1, chosen, shares.gather(1, chosen))
        if routing.is_share_normalized:
            taken = taken / taken.sum(-1, keepdim=True)
        if positions is not None:
            taken = taken.masked_fill(positions[:, None] < 0, 0.0)
        y = torch.zeros_like(x, dtype=torch.float32)
        for expert in range(num_experts):
            inner = _product(x, _of_expert(gate_up, expert))
            y += taken[:, expert, None] * _product(inner, _of_expert(down, expert))
        if routing.shared is not None:
            inner = _product(x, routing.shared.gate_up)
            gate = torch.sigmoid(logits[:, num_experts:])
            y += gate * _product(inner, routing.shared.down)
        y = y.to(x.dtype)
        if down.post_norm is not None:
            y = _normed(y, down.post_norm, down.epsilon)
        out.copy_(y if residual is None else y + residual)

    def attend(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor,
        positions: torch.Tensor,
        tables: torch.Tensor,
        *,
        heads: HeadOptions = PLAIN_HEADS,
    ) -> None:
        """See ``Layers``; reads every block of the tables, used or not."""
        place = positions.clamp(min=0)
        blocks = torch.gather(tables.long(), 1, (place // cache.block_size).long()[:, None])[:, 0]
        places = blocks * cache.block_size + place % cache.block_size
        self.store(qkv, cache, positions, places, heads=heads)
        num_rows, width = tables.shape
        num_heads, head_dim = self._num_heads, cache.head_dim
        group = num_heads // cache.num_kv_heads
        query = qkv[:, : num_heads * head_dim].view(num_rows, cache.num_kv_heads, group, head_dim)
        blocks = tables.long()
        span = (num_rows, cache.num_kv_heads, width * cache.block_size, head_dim)
        keys = cache.keys[blocks].transpose(1, 2).reshape(span)
        values = cache.values[blocks].transpose(1, 2).reshape(span)
        scores = torch.matmul(query.float(), keys.float().transpose(2, 3))
        scores = scores * heads.score_scale(head_dim)
        if heads.softcap:
            scores = _capped(scores, heads.softcap)
        age = place[:, None] - torch.arange(span[2], device=qkv.device)
        is_hidden = age < 0
        if heads.window:
            is_hidden |= age >= heads.window
        scores = scores.masked_fill(is_hidden[:, None, None], -torch.inf)
        # What no token has written may be anything, and 0 · NaN is NaN.
        values = values.float().masked_fill(is_hidden[:, None, :, None], 0.0)
        out.copy_(torch.matmul(scores.softmax(-1), values).view(num_rows, -1))

    def store(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        positions: torch.Tensor,
        places: torch.Tensor,
        *,
        heads: HeadOptions = PLAIN_HEADS,
    ) -> None:
        """See ``Layers``; idle rows write to the last block, which belongs to nobody."""
        num_turned = self._num_heads + cache.num_kv_heads
        wide = qkv.view(len(qkv), -1, cache.head_dim)
        query, keys = wide[:, : self._num_heads], wide[:, self._num_heads : num_turned]
        rope = self._ropes.of(is_local=heads.is_local)
        cos, sin = (table[positions.clamp(min=0).long()][:, None] for table in rope)
        for part, weight in ((query, heads.q_norm), (keys, heads.k_norm)):
            normed = part.float()
            if weight is not None:
                normed = _normed(normed, weight, heads.epsilon)
            first, second, rest = _split_rotary(normed, cos.shape[-1])
            turned = [first * cos - second * sin, second * cos + first * sin, rest]
            part.copy_(torch.cat(turned, dim=-1))
        is_idle = positions < 0
        blocks = (places.long() // cache.block_size).masked_fill(is_idle, len(cache.keys) - 1)
        offsets = (places.long() % cache.block_size).masked_fill(is_idle, 0)
        cache.keys[blocks, :, offsets] = keys.to(cache.keys.dtype)
        cache.values[blocks, :, offsets] = wide[:, num_turned:].to(cache.values.dtype)


def _product(x: torch.Tensor, projection: Projection) -> torch.Tensor:
    if projection.norm is not None:
        x = _normed(x, projection.norm, projection.epsilon)
    weight = projection.weight
    if projection.scales is not None:
        weight = dequantize_rows(weight, projection.scales, x.dtype)
    y = F.linear(x, weight, projection.bias)
    if projection.is_gated:
        gate, up = y.float().chunk(2, dim=-1)
        gate = F.gelu(gate, approximate="tanh") if projection.is_gelu else F.silu(gate)
        y = (gate * up).to(x.dtype)
    if projection.softcap:
        y = _capped(y.float(), projection.softcap)
    if projection.post_norm is not None:
        y = _normed(y, projection.post_norm, projection.epsilon)
    return y


def _of_expert(projection: Projection, expert: int) -> Projection:
    """Without the norms around the block."""
    scales = projection.scales
    return projection._replace(
        weight=projection.weight[expert],
        scales=None if scales is None else scales[expert],
        norm=None,
        post_norm=None,
    )


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * scale * weight.float()).to(x.dtype)


def _capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x / cap)


def _split_rotary(x: torch.Tensor, half: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both halves of the rotated dimensions, and those that are not."""
    first, second, rest = torch.split(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    return first, second, rest
