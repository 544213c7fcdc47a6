"""Attention of chunks of prompts with windows and capped scores, which no library's call does.

Online softmax over tiles (Dao et al. 2022): first over what came before the chunk, by way of the
block table, then over the chunk's own keys, which still lie in the piece. Both parts begin where
the window of a tile's first query does, so a window makes the work linear in the prompt.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.head_options import LOG2_E, HeadOptions
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.soft_cap import soft_cap

_BLOCK_M = 64
#: Bytes of a tile of keys; two tiles of keys and two of values are on their way.
_TILE_BYTES = 16 << 10


# Where a chunk begins and its numbers lie is different for each: a kernel for each kind of number
# would be compiled while requests wait.
@triton.jit(do_not_specialize=["offsets", "blocks", "start"])
def _chunk_kernel(
    qkv: tl.tensor,
    out: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    offsets: tl.tensor,
    blocks: tl.tensor,
    start: tl.tensor,
    qkv_stride: tl.tensor,
    out_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    position_stride: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    window: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program makes BLOCK_M queries of one head; those of the longest way come first.

    Grid (heads, tiles of the longest chunk, chunks). ``scale`` and ``cap`` are times log2(e).
    Numbers of keys count from the first of the chunk; those before it, at negative ones, are there
    if ``blocks`` is.
    """
    head = tl.program_id(0)
    tile = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    begin = tl.load(offsets + tl.program_id(2))
    length = tl.load(offsets + tl.program_id(2) + 1) - begin
    if tile >= length:
        return
    m = tile + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    is_cell = (m < length)[:, None] & (d < HEAD_DIM)[None, :]
    rows = qkv + begin.to(tl.int64) * qkv_stride
    at = m.to(tl.int64)[:, None] * qkv_stride + head * HEAD_DIM + d[None, :]
    query = tl.load(rows + at, mask=is_cell, other=0.0)
    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    kv_head = head // GROUP
    if blocks is not None:
        first = 0
        if window is not None:
            first = tl.maximum(start + tile + 1 - window, 0)
        base = kv_head.to(tl.int64) * head_stride
        for n in tl.range(first // BLOCK_N * BLOCK_N, start, BLOCK_N, num_stages=STAGES):
            t = n + tl.arange(0, BLOCK_N)
            is_there = (t >= first) & (t < start)
            block = tl.load(blocks + t // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)
            place = base + block * block_stride + (t % BLOCK_SIZE) * position_stride
            mask = is_there[:, None] & (d < HEAD_DIM)[None, :]
            key = tl.load(keys + place[:, None] + d[None, :], mask=mask, other=0.0)
            value = tl.load(values + place[:, None] + d[None, :], mask=mask, other=0.0)
            is_seen = is_there[None, :]
            if window is not None:
                is_seen = is_seen & (start + m[:, None] - t[None, :] < window)
            peak, mass, total = _weigh(query, key, value, peak, mass, total, is_seen, scale, cap)
    own = 0
    if window is not None:
        own = tl.maximum(tile + 1 - window, 0) // BLOCK_N * BLOCK_N
    KEYS_AT: tl.constexpr = NUM_KV_HEADS * GROUP * HEAD_DIM
    key_rows = rows + KEYS_AT + kv_head * HEAD_DIM
    for n in tl.range(own, tl.minimum(tile + BLOCK_M, length), BLOCK_N, num_stages=STAGES):
        t = n + tl.arange(0, BLOCK_N)
        mask = (t < length)[:, None] & (d < HEAD_DIM)[None, :]
        key_at = key_rows + t.to(tl.int64)[:, None] * qkv_stride + d[None, :]
        key = tl.load(key_at, mask=mask, other=0.0)
        value = tl.load(key_at + NUM_KV_HEADS * HEAD_DIM, mask=mask, other=0.0)
        is_seen = m[:, None] >= t[None, :]
        if window is not None:
            is_seen = is_seen & (m[:, None] - t[None, :] < window)
        peak, mass, total = _weigh(query, key, value, peak, mass, total, is_seen, scale, cap)
    # Every query has seen itself, so its mass is at least 1; rows past the chunk may have none.
    result = (total * (1.0 / tl.maximum(mass, 1.0))[:, None]).to(out.dtype.element_ty)
    at = (begin + m).to(tl.int64)[:, None] * out_stride + head * HEAD_DIM + d[None, :]
    tl.store(out + at, result, mask=is_cell)


@triton.jit
def _weigh(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    peak: tl.tensor,
    mass: tl.tensor,
    total: tl.tensor,
    is_seen: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
):
    """Online softmaxes with some more keys."""
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    if cap is not None:
        score = soft_cap(score, cap)
    score = tl.where(is_seen, score, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(score, 1))
    fade = tl.exp2(peak - new_peak)
    weight = tl.exp2(score - new_peak[:, None])
    mass = mass * fade + tl.sum(weight, 1)
    total = tl.dot(weight.to(value.dtype), value, total * fade[:, None], input_precision="ieee")
    return new_peak, mass, total


def attend_chunks(
    qkv: torch.Tensor,
    cache: PagedCache,
    out: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    past: tuple[int, torch.Tensor] | None,
    *,
    num_heads: int,
    heads: HeadOptions,
    num_positions: int,
) -> None:
    """Causal attention of chunks side by side, each over its prompt as far as the window goes.

    A prompt of n tokens takes 2 · n · min(window, n / 2) · head_dim multiply-adds of each head.
    Each head of a group reads keys and values for itself, mostly from the L2 cache.

    Args:
        qkv: [num_rows, (num_heads + 2 num_kv_heads) head_dim], rotated.
        cache: keys and values of the layer.
        out: [num_rows, num_heads · head_dim]; rows of the chunks are written.
        offsets: int32[num_chunks + 1] on the device: where chunks begin, and the last one ends.
        longest: rows of the longest.
        past: position of the first row, and blocks int32[w] on the device of what came before; for
            one chunk. Blocks before the window are not read.
        num_heads: query heads.
        heads: of the layer.
        num_positions: context length.

    Raises:
        InternalError: operands do not fit.
    """
    num_chunks, head_dim = len(offsets) - 1, cache.head_dim
    width = (num_heads + 2 * cache.num_kv_heads) * head_dim
    problems = {
        "qkv": qkv.shape[1] != width or qkv.stride(1) != 1,
        "cache": cache.keys.dtype != qkv.dtype or cache.keys.stride() != cache.values.stride(),
        "out": out.shape != (len(qkv), num_heads * head_dim) or out.stride(1) != 1,
        "past": past is not None and num_chunks != 1,
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("operands of chunk attention do not fit", value=", ".join(wrong))
    block_d: int = triton.next_power_of_2(head_dim)
    start, blocks = past or (0, None)
    _chunk_kernel[(num_heads, triton.cdiv(longest, _BLOCK_M), num_chunks)](
        qkv, out, cache.keys, cache.values, offsets, blocks, start,
        qkv.stride(0), out.stride(0), *cache.strides,
        heads.score_scale(head_dim) * LOG2_E, heads.cap_base2, heads.window_within(num_positions),
        NUM_KV_HEADS=cache.num_kv_heads, GROUP=num_heads // cache.num_kv_heads,
        HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_SIZE=cache.block_size, BLOCK_M=_BLOCK_M,
        BLOCK_N=min(max(_TILE_BYTES // (block_d * qkv.element_size()), 16), 64), STAGES=2,
        num_warps=4 if block_d <= 128 else 8,
    )  # fmt: skip
