"""y = W · x for one token and INT8 weights, in integers: no weight is made a float."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.activation import activate
from hybridgen.models.kernels.limbs import GROUP, limb_product, load_limbs
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer
from hybridgen.models.kernels.soft_cap import soft_cap


@triton.jit
def limb_gemv_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    residual: tl.tensor,
    bias: tl.tensor,
    num_rows: tl.tensor,
    cap: tl.tensor,
    SIZE: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    IS_CHAINED: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """One program makes BLOCK_N elements of the result.

    x [SIZE], a multiple of 16; weight int32[num_rows, SIZE / 4], words of 4 weights (gated:
    [2 num_rows, SIZE / 4], gates first); out, residual [num_rows]; scales, bias [num_rows] (gated:
    2 num_rows). Each thread makes limbs of the columns that it has weights of, once for all rows.
    Moves num_rows · SIZE bytes; x comes from the caches.
    """
    IS_EVEN: tl.constexpr = SIZE % BLOCK_K == 0
    GROUPS: tl.constexpr = BLOCK_K // GROUP
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, num_rows - 1).to(tl.int64)
    word = tl.arange(0, BLOCK_K // 4)
    group = tl.arange(0, GROUPS)
    gates = weight + row[:, None] * (SIZE // 4) + word[None, :]
    ups = gates + tl.cast(num_rows, tl.int64) * (SIZE // 4)  # a single row is no tensor
    release_consumers(IS_CHAINED)
    w = _words(gates, word, SIZE, IS_EVEN or SIZE >= BLOCK_K)
    if IS_GATED:
        u = _words(ups, word, SIZE, IS_EVEN or SIZE >= BLOCK_K)
    row_scale = tl.load(scales + row)
    if IS_GATED:
        up_scale = tl.load(scales + row + num_rows)
    if bias is not None:
        addend = tl.load(bias + row).to(tl.float32)
        if IS_GATED:
            up_addend = tl.load(bias + row + num_rows).to(tl.float32)
    wait_for_producer(IS_CHAINED)
    scale, low, high = _limbs(x, group, SIZE, IS_EVEN or SIZE >= BLOCK_K, IS_COMPILED)
    if residual is not None:  # early: at the end nothing would cover its way from memory
        rest = tl.load(residual + row).to(tl.float32)
    total = limb_product(w, scale, low, high, IS_COMPILED)
    if IS_GATED:
        up_total = limb_product(u, scale, low, high, IS_COMPILED)
    for start in tl.range(BLOCK_K, SIZE, BLOCK_K, num_stages=STAGES):
        w = _words(gates + start // 4, word + start // 4, SIZE, IS_EVEN)
        if IS_GATED:
            u = _words(ups + start // 4, word + start // 4, SIZE, IS_EVEN)
        scale, low, high = _limbs(x, group + start // GROUP, SIZE, IS_EVEN, IS_COMPILED)
        total += limb_product(w, scale, low, high, IS_COMPILED)
        if IS_GATED:
            up_total += limb_product(u, scale, low, high, IS_COMPILED)
    result = tl.sum(total, 1) * row_scale
    if IS_GATED:
        up = tl.sum(up_total, 1) * up_scale
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
def _words(pointers: tl.tensor, word: tl.tensor, size: tl.constexpr, IS_EVEN: tl.constexpr):
    """A tile of weights; they are used once, so they need not stay in the cache."""
    if IS_EVEN:
        return tl.load(pointers, eviction_policy="evict_first")
    is_inside = (word < size // 4)[None, :]
    return tl.load(pointers, mask=is_inside, other=0, eviction_policy="evict_first")


@triton.jit
def _limbs(
    x: tl.tensor,
    group: tl.tensor,
    size: tl.constexpr,
    IS_EVEN: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Limbs of groups of x; those behind its end are zero."""
    return load_limbs(x, group, None if IS_EVEN else group < size // GROUP, IS_COMPILED)
