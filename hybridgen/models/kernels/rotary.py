"""Rotation of queries and keys and the write of keys and values into their blocks, for prefill.

Heads are normed before where the model does so; dimensions that are not rotated are kept.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer


@triton.jit
def _rotary_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    cosines: tl.tensor,
    sines: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    positions: tl.tensor,
    places: tl.tensor,
    qkv_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    position_stride: tl.tensor,
    epsilon: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    HALF: tl.constexpr = ROTARY // 2
    token = tl.program_id(0).to(tl.int64)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    position = tl.load(positions + token).to(tl.int64)
    if position < 0:
        return
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_HALF)
    is_head = (head < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None]
    mask = is_head & (d < HALF)[None, :]
    cos = tl.load(cosines + position * HALF + d, mask=d < HALF, other=0.0)[None, :]
    sin = tl.load(sines + position * HALF + d, mask=d < HALF, other=0.0)[None, :]
    low_at = qkv + token * qkv_stride + head[:, None] * HEAD_DIM + d[None, :]
    low = tl.load(low_at, mask=mask, other=0.0)
    high = tl.load(low_at + HALF, mask=mask, other=0.0)
    wide_low = low.to(tl.float32)
    wide_high = high.to(tl.float32)
    if ROTARY < HEAD_DIM:
        r = ROTARY + tl.arange(0, BLOCK_REST)
        rest_mask = is_head & (r < HEAD_DIM)[None, :]
        rest_at = qkv + token * qkv_stride + head[:, None] * HEAD_DIM + r[None, :]
        rest = tl.load(rest_at, mask=rest_mask, other=0.0)
    if q_norm is not None:
        squares = tl.sum(wide_low * wide_low, 1) + tl.sum(wide_high * wide_high, 1)
        if ROTARY < HEAD_DIM:
            squares += tl.sum(rest.to(tl.float32) * rest.to(tl.float32), 1)
        root = tl.rsqrt(squares / HEAD_DIM + epsilon)[:, None]
        is_query = (head < NUM_HEADS)[:, None]
        wide_low *= root * _norms(q_norm, k_norm, is_query, d, HALF)
        wide_high *= root * _norms(q_norm + HALF, k_norm + HALF, is_query, d, HALF)
    turned_low = wide_low * cos - wide_high * sin
    turned_high = wide_high * cos + wide_low * sin
    is_turned = (head < NUM_HEADS + NUM_KV_HEADS)[:, None] & mask
    tl.store(low_at, turned_low.to(low.dtype), mask=is_turned)
    tl.store(low_at + HALF, turned_high.to(low.dtype), mask=is_turned)
    if q_norm is not None and ROTARY < HEAD_DIM:
        normed = rest.to(tl.float32) * root * _norms(q_norm, k_norm, is_query, r, HEAD_DIM)
        is_normed = (head < NUM_HEADS + NUM_KV_HEADS)[:, None]
        rest = tl.where(is_normed, normed.to(rest.dtype), rest)
        tl.store(rest_at, rest, mask=is_normed & rest_mask)
    at_token = tl.load(places + token).to(tl.int64)
    place = at_token // BLOCK_SIZE * block_stride + (at_token % BLOCK_SIZE) * position_stride
    kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
    at = place + kv_head.to(tl.int64)[:, None] * head_stride + d[None, :]
    is_key = ((head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS))[:, None] & mask
    tl.store(keys + at, turned_low.to(keys.dtype.element_ty), mask=is_key)
    tl.store(keys + at + HALF, turned_high.to(keys.dtype.element_ty), mask=is_key)
    is_value = (head >= NUM_HEADS + NUM_KV_HEADS)[:, None] & mask
    tl.store(values + at, low.to(values.dtype.element_ty), mask=is_value)
    tl.store(values + at + HALF, high.to(values.dtype.element_ty), mask=is_value)
    if ROTARY < HEAD_DIM:
        at = place + kv_head.to(tl.int64)[:, None] * head_stride + r[None, :]
        is_key = ((head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS))[:, None] & rest_mask
        tl.store(keys + at, rest.to(keys.dtype.element_ty), mask=is_key)
        is_value = (head >= NUM_HEADS + NUM_KV_HEADS)[:, None] & rest_mask
        tl.store(values + at, rest.to(values.dtype.element_ty), mask=is_value)


@triton.jit
def _norms(
    q_norm: tl.tensor, k_norm: tl.tensor, is_query: tl.tensor, d: tl.tensor, SIZE: tl.constexpr
):
    """Weights of each head's norm at dimensions ``d`` below SIZE."""
    query = tl.load(q_norm + d, mask=d < SIZE, other=0.0).to(tl.float32)[None, :]
    key = tl.load(k_norm + d, mask=d < SIZE, other=0.0).to(tl.float32)[None, :]
    return tl.where(is_query, query, key)


def rotate_and_store(
    qkv: torch.Tensor,
    cache: PagedCache,
    rope: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    places: torch.Tensor,
    *,
    num_heads: int,
    heads: HeadOptions = PLAIN_HEADS,
    is_chained: bool = False,
) -> None:
    """Rotate queries and keys in place; write rotated keys and values to each token's block.

    Reads qkv once; writes queries and keys back, and keys and values to the cache. Tokens need not
    belong to one sequence.

    Args:
        qkv: [num_tokens, (num_heads + 2 num_kv_heads) head_dim].
        cache: keys and values of one layer.
        rope: cosines and sines, float32[num_positions, rotary_size / 2] each.
        positions: int32[num_tokens], absolute, on the device; below 0 for a row to leave out.
        places: int32[num_tokens], block · block_size + offset of each token in the cache, on the
            device.
        num_heads: query heads.
        heads: of the layer; here its norms count.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: shapes do not fit.
    """
    cache.check_batch(qkv, rope, positions, None, num_heads, heads)
    if places.shape != positions.shape or places.dtype != torch.int32:
        raise InternalError("operands of paged attention do not fit", value="places")
    head_dim, rotary = cache.head_dim, 2 * rope[0].shape[1]
    num_all = num_heads + 2 * cache.num_kv_heads
    block_h = min(16, triton.next_power_of_2(num_all))
    _rotary_kernel[(len(qkv), triton.cdiv(num_all, block_h))](
        qkv, cache.keys, cache.values, *rope, heads.q_norm, heads.k_norm, positions, places,
        qkv.stride(0), *cache.strides, heads.norm_epsilon,
        NUM_HEADS=num_heads, NUM_KV_HEADS=cache.num_kv_heads, HEAD_DIM=head_dim,
        ROTARY=rotary, BLOCK_HALF=triton.next_power_of_2(rotary // 2),
        BLOCK_REST=triton.next_power_of_2(max(head_dim - rotary, 1)), BLOCK_SIZE=cache.block_size,
        BLOCK_H=block_h, IS_CHAINED=is_chained, num_warps=4, launch_pdl=is_chained,
    )  # fmt: skip
