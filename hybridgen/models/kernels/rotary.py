"""Rotation of queries and keys and the write of keys and values into their blocks, for prefill."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer


@triton.jit
def _rotary_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    cosines: tl.tensor,
    sines: tl.tensor,
    positions: tl.tensor,
    places: tl.tensor,
    qkv_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    position_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    position = tl.load(positions + token).to(tl.int64)
    if position < 0:
        return
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_HALF)
    mask = (head < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & (d < HALF)[None, :]
    cos = tl.load(cosines + position * HALF + d, mask=d < HALF, other=0.0)[None, :]
    sin = tl.load(sines + position * HALF + d, mask=d < HALF, other=0.0)[None, :]
    low_at = qkv + token * qkv_stride + head[:, None] * HEAD_DIM + d[None, :]
    low = tl.load(low_at, mask=mask, other=0.0)
    high = tl.load(low_at + HALF, mask=mask, other=0.0)
    wide_low = low.to(tl.float32)
    wide_high = high.to(tl.float32)
    turned_low = wide_low * cos - wide_high * sin
    turned_high = wide_high * cos + wide_low * sin
    is_turned = (head < NUM_HEADS + NUM_KV_HEADS)[:, None] & mask
    tl.store(low_at, turned_low.to(low.dtype), mask=is_turned)
    tl.store(low_at + HALF, turned_high.to(low.dtype), mask=is_turned)
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


def rotate_and_store(
    qkv: torch.Tensor,
    cache: PagedCache,
    rope: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    places: torch.Tensor,
    *,
    num_heads: int,
    is_chained: bool = False,
) -> None:
    """Rotate queries and keys in place; write rotated keys and values to each token's block.

    Reads qkv once; writes queries and keys back, and keys and values to the cache. Tokens need not
    belong to one sequence.

    Args:
        qkv: [num_tokens, (num_heads + 2 num_kv_heads) head_dim].
        cache: keys and values of one layer.
        rope: cosines and sines, float32[num_positions, head_dim / 2] each.
        positions: int32[num_tokens], absolute, on the device; below 0 for a row to leave out.
        places: int32[num_tokens], block · block_size + offset of each token in the cache, on the
            device.
        num_heads: query heads.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: shapes do not fit.
    """
    cache.check_batch(qkv, rope, positions, None, num_heads)
    if places.shape != positions.shape or places.dtype != torch.int32:
        raise InternalError("operands of paged attention do not fit", value="places")
    head_dim = cache.head_dim
    heads = num_heads + 2 * cache.num_kv_heads
    block_h = min(16, triton.next_power_of_2(heads))
    _rotary_kernel[(len(qkv), triton.cdiv(heads, block_h))](
        qkv, cache.keys, cache.values, *rope, positions, places,
        qkv.stride(0), *cache.strides,
        NUM_HEADS=num_heads, NUM_KV_HEADS=cache.num_kv_heads, HEAD_DIM=head_dim,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2), BLOCK_SIZE=cache.block_size,
        BLOCK_H=block_h, IS_CHAINED=is_chained, num_warps=4, launch_pdl=is_chained,
    )  # fmt: skip
