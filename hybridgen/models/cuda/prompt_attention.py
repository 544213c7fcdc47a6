"""Attention of the rows of a piece: of each chunk within itself, and over what came before it.

What came before is in the cache, block by block, and is gathered; own keys and values are still in
the piece. The libraries' calls cannot mask both at once (their causal mask begins at the first
query and the first key), so both parts are made with the sums of their softmaxes and merged. Layers
with a window or capped scores are ``ChunkAttention``'s.
"""

from __future__ import annotations

import torch

from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.attention_calls import (
    Attended,
    AttentionCalls,
    FlashCalls,
    PlainCalls,
    try_cudnn,
)
from hybridgen.models.cuda.chunk_attention import ChunkAttention
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.cuda.piece_inputs import Continued, PieceLayout, piece_sizes
from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.kernels.paged_cache import PagedCache

#: Keys that came before are taken so many at once: cuDNN needs a plan for each length.
_SEGMENTS = (4096, 2048)
#: Queries over them: so many at once or a multiple, for the same reason.
_WINDOW = 512
#: Chunks that have a piece to themselves gain nothing from cuDNN where they are shorter.
_LEAST_ALONE = 512
#: Chunks of equal length that fill a piece.
_EQUAL_LENGTHS = (1024, 512, 256)


class PromptAttention:
    """Attention of one piece after the other.

    Args:
        config: the model.
        shape: sizes.
        qkv: [max_chunk, q_size + 2 kv_size], where pieces have their rows.
    """

    def __init__(self, config: ModelConfig, shape: EngineShape, qkv: torch.Tensor) -> None:
        self._shape = shape
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        query, keys, values = torch.split(qkv.view(len(qkv), -1, config.head_dim), sizes, 1)
        self._heads = (query, keys, values)
        self._rows = {n: (query[:n], keys[:n], values[:n]) for n in piece_sizes(shape.max_chunk)}
        # Always of the same length, so that heads are always equally far from each other.
        gathered = (config.num_kv_heads, shape.table_width, shape.block_size, config.head_dim)
        self._past = tuple(
            torch.zeros(gathered, dtype=qkv.dtype, device=qkv.device) for _ in range(2)
        )
        is_half = qkv.is_cuda and qkv.dtype != torch.float32
        self._scale = config.score_scale
        self.calls: AttentionCalls = (FlashCalls if is_half else PlainCalls)(self._scale)
        self._by_chunk = ChunkAttention(config, shape, qkv)

    def prepare(self) -> None:
        """Choose the library, on the current stream; the contents of ``qkv`` are lost."""
        if not isinstance(self.calls, FlashCalls) or self._by_chunk.is_for_all():
            return
        keys, values = (x.flatten(1, 2) for x in self._past)
        for tensor in (*self._heads, keys, values):
            tensor.normal_()
        most = len(self._heads[0])
        equal = [(1, size) for size in piece_sizes(most) if size >= _LEAST_ALONE]
        equal += [(most // n, n) for n in _EQUAL_LENGTHS if most % n == 0 and most > n]
        is_windowed = most >= _WINDOW
        segments = tuple(n for n in _SEGMENTS if is_windowed and n < self._shape.max_model_len)
        past = (keys, values)
        self.calls = try_cudnn(self._heads, past, equal, segments, _WINDOW, scale=self._scale)

    def attend(
        self, layout: PieceLayout, cache: PagedCache, heads: HeadOptions = PLAIN_HEADS
    ) -> torch.Tensor:
        """[num_rows, q_size], of each row over its prompt up to it.

        Args:
            layout: of the piece, whose queries, keys and values are in ``qkv``, rotated.
            cache: keys and values of the layer.
            heads: of the layer.
        """
        if self._by_chunk.is_for(heads):
            return self._by_chunk.attend(layout, cache, heads)
        query, keys, values = self._rows[layout.num_rows]
        own = self.calls.within(query, keys, values, layout.offsets, layout.lengths)
        for chunk in layout.continued:
            self._add_past(own, chunk, cache)
        return own.out.flatten(1)

    def _add_past(self, own: Attended, chunk: Continued, cache: PagedCache) -> None:
        calls, rows, query = self.calls, chunk.rows, self._heads[0]
        keys, values = (
            _gather_pages(pages, chunk.blocks, space)
            for pages, space in zip(cache, self._past, strict=True)
        )
        out, sums = own.out[rows], own.sums_of(chunk.number, rows)
        num_rows = rows.stop - rows.start
        # A window of which less than half are rows that count would cost more than it saves.
        segments = calls.segments if 2 * num_rows > calls.window else ()
        window = window_of(rows, calls.window, len(query))
        for begin, end in split_past(chunk.start, segments):
            queries = window if end - begin in segments else rows
            part = calls.over(query[queries], keys[:, begin:end], values[:, begin:end])
            first = rows.start - queries.start
            part_sums = part.sums_of(0, slice(0, queries.stop - queries.start))
            counted = slice(first, first + num_rows)
            calls.merge(out, sums, part.out[counted], part_sums[:, counted])


def split_past(num_positions: int, segments: tuple[int, ...]) -> list[tuple[int, int]]:
    """Positions 0 … ``num_positions`` - 1 as segments of these lengths, and a rest."""
    spans, begin = [], 0
    for size in segments:
        while num_positions - begin >= size:
            spans.append((begin, begin + size))
            begin += size
    if begin < num_positions:
        spans.append((begin, num_positions))
    return spans


def window_of(rows: slice, step: int, max_rows: int) -> slice:
    """Rows around ``rows``, a multiple of ``step`` of them where there are as many.

    Queries know nothing of each other, so the others do no harm, whatever they are.
    """
    num_rows = min(-(-(rows.stop - rows.start) // step) * step, max_rows)
    first = min(rows.start, max_rows - num_rows)
    return slice(first, first + num_rows)


def _gather_pages(pages: torch.Tensor, blocks: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
    """[num_kv_heads, capacity, head_dim], pages one after the other at the start of each head.

    Args:
        pages: [num_blocks, num_kv_heads, block_size, head_dim].
        blocks: int32[w], which of them.
        space: [num_kv_heads, table_width, block_size, head_dim], where to.
    """
    torch.index_select(pages.transpose(0, 1), 1, blocks, out=space[:, : len(blocks)])
    return space.flatten(1, 2)
