"""Attention of pieces in layers that have a window or cap their scores.

The libraries' calls do neither with keys that came before, so layers of this kind take a kernel of
our own on a device, and plain torch elsewhere; all other layers stay with the libraries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.cuda.piece_inputs import Continued, PieceLayout
from hybridgen.models.kernels.chunk_attention import attend_chunks
from hybridgen.models.kernels.head_options import HeadOptions
from hybridgen.models.kernels.paged_cache import PagedCache


class ChunkRun(NamedTuple):
    """Chunks of a piece for one call: some that begin their prompts, or one that goes on.

    Attributes:
        chunks: which of the piece.
        first_row: of the first of them.
        past: of the one that goes on.
    """

    chunks: slice
    first_row: int
    past: Continued | None


def chunk_runs(layout: PieceLayout) -> Iterator[ChunkRun]:
    """The piece as few calls."""
    past = {chunk.number: chunk for chunk in layout.continued}
    num_chunks = len(layout.lengths)
    first_rows = [0, *itertools.accumulate(layout.lengths)]
    number = 0
    while number < num_chunks:
        stop = number + 1
        while number not in past and stop < num_chunks and stop not in past:
            stop += 1
        yield ChunkRun(slice(number, stop), first_rows[number], past.get(number))
        number = stop


class ChunkAttention:
    """Attention of one piece after the other.

    Args:
        config: the model.
        shape: sizes.
        qkv: [max_chunk, q_size + 2 kv_size], where pieces have their rows.
    """

    def __init__(self, config: ModelConfig, shape: EngineShape, qkv: torch.Tensor) -> None:
        self._config = config
        self._num_positions = shape.max_model_len
        self._qkv = qkv

    def is_for(self, heads: HeadOptions) -> bool:
        """Whether a layer is of this kind, in the context that is served."""
        has_window = heads.window_within(self._num_positions) is not None
        return has_window or heads.softcap > 0

    def is_for_all(self) -> bool:
        """Whether every layer of the model is of this kind."""
        config = self._config
        return all(
            self.is_for(HeadOptions(softcap=config.attention_softcap, window=config.window(layer)))
            for layer in range(config.num_layers)
        )

    def attend(self, layout: PieceLayout, cache: PagedCache, heads: HeadOptions) -> torch.Tensor:
        """[num_rows, q_size], of each row over its prompt up to it, as far as the window goes."""
        qkv = self._qkv[: layout.num_rows]
        out = qkv.new_empty(layout.num_rows, self._config.q_size)
        for run in chunk_runs(layout):
            if qkv.is_cuda:
                self._by_kernel(run, layout, cache, heads, out)
            else:
                self._plainly(run, layout, cache, heads, out)
        return out

    def _by_kernel(
        self,
        run: ChunkRun,
        layout: PieceLayout,
        cache: PagedCache,
        heads: HeadOptions,
        out: torch.Tensor,
    ) -> None:
        attend_chunks(
            self._qkv[: len(out)],
            cache,
            out,
            layout.offsets[run.chunks.start : run.chunks.stop + 1],
            max(layout.lengths[run.chunks]),
            None if run.past is None else (run.past.start, run.past.blocks),
            num_heads=self._config.num_heads,
            heads=heads,
            num_positions=self._num_positions,
        )

    def _plainly(
        self,
        run: ChunkRun,
        layout: PieceLayout,
        cache: PagedCache,
        heads: HeadOptions,
        out: torch.Tensor,
    ) -> None:
        config = self._config
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        row = run.first_row
        for length in layout.lengths[run.chunks]:
            rows = slice(row, row + length)
            own = self._qkv[rows].view(length, -1, config.head_dim)
            query, keys, values = torch.split(own, sizes, 1)
            if run.past is not None:
                keys, values = (
                    torch.cat([_pages(pages, run.past), new])
                    for pages, new in zip(cache, (keys, values), strict=True)
                )
            out[rows] = attend_plainly(query, keys, values, heads)
            row += length


def attend_plainly(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: HeadOptions
) -> torch.Tensor:
    """Causal attention in float32, [n, num_heads · head_dim].

    Args:
        query: [n, num_heads, head_dim], of the last positions.
        keys: [m, num_kv_heads, head_dim]; what no query sees may be anything.
        values: as keys.
        heads: of the layer.
    """
    num_rows, num_heads, head_dim = query.shape
    group = num_heads // keys.shape[1]
    positions = torch.arange(len(keys), device=query.device)
    ages = positions[len(keys) - num_rows :, None] - positions
    is_seen = ages >= 0
    if heads.window:
        is_seen &= ages < heads.window
    is_hidden = ~is_seen.any(0)[:, None, None]
    wide_keys, wide_values = (
        x.float().masked_fill(is_hidden, 0.0).repeat_interleave(group, 1) for x in (keys, values)
    )
    scores = torch.einsum("nhd,mhd->hnm", query.float(), wide_keys) * heads.score_scale(head_dim)
    if heads.softcap:
        scores = heads.softcap * torch.tanh(scores / heads.softcap)
    weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, wide_values).flatten(1)


def _pages(pages: torch.Tensor, past: Continued) -> torch.Tensor:
    """[start, num_kv_heads, head_dim] of what came before."""
    return pages[past.blocks.long()].transpose(1, 2).flatten(0, 1)[: past.start]
