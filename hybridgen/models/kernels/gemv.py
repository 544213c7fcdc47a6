"""y = W · x for one token: every weight is read once, in float32 multiply-adds."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.activation import activate
from hybridgen.models.kernels.int8 import widen
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer
from hybridgen.models.kernels.soft_cap import soft_cap


@triton.jit
def gemv_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    norm: tl.tensor,
    residual: tl.tensor,
    bias: tl.tensor,
    num_rows: tl.tensor,
    epsilon: tl.tensor,
    cap: tl.tensor,
    SIZE: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    UNROLL: tl.constexpr,
    IS_CHAINED: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """One program makes BLOCK_N elements of the result.

    x [SIZE]; weight [num_rows, SIZE] (gated: [2 num_rows, SIZE], gates first); out, residual
    [num_rows]; scales, bias [num_rows] (gated: 2 num_rows); norm [SIZE]. The root mean square of
    x is found in the pass over x that the product needs anyway, and applied to the sums.
    Moves num_rows · SIZE weights; x and norm come from the caches.
    """
    IS_EVEN: tl.constexpr = SIZE % BLOCK_K == 0
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, num_rows - 1).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    gates = weight + row[:, None] * SIZE + k[None, :]
    ups = gates + tl.cast(num_rows, tl.int64) * SIZE  # a single row is no tensor
    release_consumers(IS_CHAINED)
    w = _weights(gates, k, SIZE, IS_EVEN or SIZE >= BLOCK_K)
    if IS_GATED:
        u = _weights(ups, k, SIZE, IS_EVEN or SIZE >= BLOCK_K)
    if norm is not None:
        factor = tl.load(norm + k, mask=k < SIZE, other=0.0).to(tl.float32)
    if scales is not None:
        scale = tl.load(scales + row).to(tl.float32)
        if IS_GATED:
            up_scale = tl.load(scales + row + num_rows).to(tl.float32)
    if bias is not None:
        addend = tl.load(bias + row).to(tl.float32)
        if IS_GATED:
            up_addend = tl.load(bias + row + num_rows).to(tl.float32)
    wait_for_producer(IS_CHAINED)
    value = tl.load(x + k, mask=k < SIZE, other=0.0).to(tl.float32)
    if residual is not None:  # early: at the end nothing would cover its way from memory
        rest = tl.load(residual + row).to(tl.float32)
    squares = value * value
    if norm is not None:
        value *= factor
    total = widen(w, IS_COMPILED) * value[None, :]
    if IS_GATED:
        up_total = widen(u, IS_COMPILED) * value[None, :]
    for start in tl.range(BLOCK_K, SIZE, BLOCK_K, num_stages=STAGES, loop_unroll_factor=UNROLL):
        column = start + k
        w = _weights(gates + start, column, SIZE, IS_EVEN)
        if IS_GATED:
            u = _weights(ups + start, column, SIZE, IS_EVEN)
        value = tl.load(x + column, mask=column < SIZE, other=0.0).to(tl.float32)
        if norm is not None:
            squares += value * value
            value *= tl.load(norm + column, mask=column < SIZE, other=0.0).to(tl.float32)
        total += widen(w, IS_COMPILED) * value[None, :]
        if IS_GATED:
            up_total += widen(u, IS_COMPILED) * value[None, :]
    result = tl.sum(total, 1)
    if IS_GATED:
        up = tl.sum(up_total, 1)
    if scales is not None:
        result *= scale
        if IS_GATED:
            up *= up_scale
    if norm is not None:
        root = tl.rsqrt(tl.sum(squares, 0) / SIZE + epsilon)
        result *= root
        if IS_GATED:
            up *= root
    if bias is not None:
        result += addend
        if IS_GATED:
            up += up_addend
    if IS_GATED:
        result = activate(result, IS_GELU) * up
    if cap is not None:
        result = soft_cap(result, cap)
    if residual is not None:
        result += rest
    tl.store(out + n, result.to(out.dtype.element_ty), mask=n < num_rows)


@triton.jit
def _weights(pointers: tl.tensor, column: tl.tensor, size: tl.constexpr, IS_EVEN: tl.constexpr):
    """A tile of weights; they are used once, so they need not stay in the cache."""
    if IS_EVEN:
        return tl.load(pointers, eviction_policy="evict_first")
    return tl.load(pointers, mask=(column < size)[None, :], other=0, eviction_policy="evict_first")
