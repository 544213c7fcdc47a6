"""The operations that a Llama block is made of, on the device.

One narrow door: a step calls these four and nothing else, so each can be replaced on its own.
``TritonLayers`` (``triton_layers.py``) is what serves; ``TorchLayers`` is plain torch, right for
every dtype on any device, and slow: tests and ``tools.bench_step --layers torch`` use it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  the usual name

from hybridgen.models.cuda.int8_rows import dequantize_rows
from hybridgen.models.kernels.paged_cache import PagedCache

Rope = tuple[torch.Tensor, torch.Tensor]


class Projection(NamedTuple):
    """A matrix product with what always goes with it: ``LinearWeights``, without need of Triton.

    Attributes:
        weight: [num_rows, size]; gated: [2 num_rows, size], gates first, and the result is
            silu(gates) · ups.
        scales: float32 per weight row, for int8 weights.
        bias: per weight row.
        is_gated: see ``weight``.
        norm: [size], weight of a norm of x before the product.
        epsilon: of that norm.
    """

    weight: torch.Tensor
    scales: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    is_gated: bool = False
    norm: torch.Tensor | None = None
    epsilon: float = 1e-5


class Layers(Protocol):
    """What a step is made of; results go to ``out``, nothing waits for the device."""

    def embed(self, ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """out[i] = table[ids[i]]; ids outside the table are clamped into it.

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

    def attend(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor,
        positions: torch.Tensor,
        tables: torch.Tensor,
    ) -> None:
        """Rotate, store and attend for one new token of each row; positions below 0 are idle.

        Args:
            qkv: [n, (num_heads + 2 num_kv_heads) head_dim], not rotated.
            cache: keys and values of the layer.
            out: [n, num_heads · head_dim].
            positions: int32[n].
            tables: int32[n, w], KV blocks of each row.
        """
        ...

    def store(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        positions: torch.Tensor,
        places: torch.Tensor,
    ) -> None:
        """Rotate the queries and keys of qkv in place; write keys and values to their places.

        Args:
            qkv: [n, (num_heads + 2 num_kv_heads) head_dim].
            cache: keys and values of the layer.
            positions: int32[n]; below 0 for rows to leave out.
            places: int32[n], block · block_size + offset in it.
        """
        ...


class TorchLayers:
    """Plain torch.

    Args:
        num_heads: query heads.
        rope: cosines and sines, float32[num_positions, head_dim / 2] each.
    """

    def __init__(self, num_heads: int, rope: Rope) -> None:
        self._num_heads = num_heads
        self._rope = rope

    def embed(self, ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Layers``."""
        torch.index_select(table, 0, ids.clamp(0, len(table) - 1), out=out)

    def project(
        self,
        x: torch.Tensor,
        projection: Projection,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> None:
        """See ``Layers``."""
        if projection.norm is not None:
            wide = x.float()
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + projection.epsilon)
            x = (wide * scale * projection.norm.float()).to(x.dtype)
        weight = projection.weight
        if projection.scales is not None:
            weight = dequantize_rows(weight, projection.scales, x.dtype)
        y = F.linear(x, weight, projection.bias)
        if projection.is_gated:
            gate, up = y.float().chunk(2, dim=-1)
            y = (gate * torch.sigmoid(gate) * up).to(x.dtype)
        out.copy_(y if residual is None else y + residual)

    def attend(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor,
        positions: torch.Tensor,
        tables: torch.Tensor,
    ) -> None:
        """See ``Layers``; reads every block of the tables, used or not."""
        place = positions.clamp(min=0)
        blocks = torch.gather(tables.long(), 1, (place // cache.block_size).long()[:, None])[:, 0]
        self.store(qkv, cache, positions, blocks * cache.block_size + place % cache.block_size)
        num_rows, width = tables.shape
        num_heads, head_dim = self._num_heads, cache.head_dim
        group = num_heads // cache.num_kv_heads
        query = qkv[:, : num_heads * head_dim].view(num_rows, cache.num_kv_heads, group, head_dim)
        blocks = tables.long()
        span = (num_rows, cache.num_kv_heads, width * cache.block_size, head_dim)
        keys = cache.keys[blocks].transpose(1, 2).reshape(span)
        values = cache.values[blocks].transpose(1, 2).reshape(span)
        scores = torch.matmul(query.float(), keys.float().transpose(2, 3)) * head_dim**-0.5
        places = torch.arange(span[2], device=qkv.device)
        is_future = places > positions.clamp(min=0)[:, None]
        scores = scores.masked_fill(is_future[:, None, None], -torch.inf)
        # What no token has written may be anything, and 0 · NaN is NaN.
        values = values.float().masked_fill(is_future[:, None, :, None], 0.0)
        out.copy_(torch.matmul(scores.softmax(-1), values).view(num_rows, -1))

    def store(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        positions: torch.Tensor,
        places: torch.Tensor,
    ) -> None:
        """See ``Layers``; idle rows write to the last block, which belongs to nobody."""
        heads = qkv.view(len(qkv), -1, cache.head_dim)
        num_turned = self._num_heads + cache.num_kv_heads
        cos, sin = (table[positions.clamp(min=0).long()][:, None] for table in self._rope)
        first, second = heads[:, :num_turned].float().chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        heads[:, :num_turned] = turned.to(qkv.dtype)
        is_idle = positions < 0
        blocks = (places.long() // cache.block_size).masked_fill(is_idle, len(cache.keys) - 1)
        offsets = (places.long() % cache.block_size).masked_fill(is_idle, 0)
        cache.keys[blocks, :, offsets] = heads[:, self._num_heads : num_turned].to(cache.keys.dtype)
        cache.values[blocks, :, offsets] = heads[:, num_turned:].to(cache.values.dtype)
