"""y = x · Wᵀ for a few tokens on the matrix units, split over the inner size where it pays."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.activation import activate
from hybridgen.models.kernels.producer import (
    fetch_ahead,
    hold,
    release_consumers,
    wait_for_producer,
)
from hybridgen.models.kernels.soft_cap import soft_cap


@triton.jit(do_not_specialize=["num_tokens", "ahead"])
def split_dot_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    norm: tl.tensor,
    residual: tl.tensor,
    bias: tl.tensor,
    partials: tl.tensor,
    counters: tl.tensor,
    num_tokens: tl.tensor,
    num_rows: tl.tensor,
    size: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    residual_stride: tl.tensor,
    epsilon: tl.tensor,
    cap: tl.tensor,
    ahead: tl.tensor,
    IS_GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    IS_EVEN: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_B: tl.constexpr,
    IS_EARLY: tl.constexpr,
    IS_CHAINED: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """One program makes the share of one split in BLOCK_N columns for BLOCK_B tokens.

    Grid (tiles of rows, SPLITS, blocks of tokens). x [num_tokens, size]; weight [num_rows, size]
    (gated: [2 num_rows, size], gates first); out, residual [num_tokens, num_rows]. The weights are
    the left operand: their many rows fill the matrix unit, and the few tokens are its narrow side.
    Before it waits for x, a program reads its first tile of weights (IS_EARLY), and asks for the
    ``ahead`` columns behind.
    With ``norm`` [size], x is multiplied by it on its way to the matrix unit, and the sums by the
    inverse root mean square of x, which each program finds for its share in the same pass.
    With splits, the program that comes last at ``counters`` adds the partial sums in the order of
    the splits, so that the result does not depend on who was last; it leaves the counter at zero.
    """
    IS_HELD: tl.constexpr = IS_CHAINED and IS_COMPILED
    tile = tl.program_id(0)
    split = tl.program_id(1)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, num_rows - 1).to(tl.int64)
    token = tl.program_id(2) * BLOCK_B + tl.arange(0, BLOCK_B)
    is_token = token < num_tokens
    share = tl.cdiv(tl.cdiv(size, BLOCK_K), SPLITS) * BLOCK_K
    begin = split * share
    end = tl.minimum(begin + share, size)
    gates = weight + row * size
    ups = gates + tl.cast(num_rows, tl.int64) * size  # a single row is no tensor
    release_consumers(IS_CHAINED)
    if IS_EVEN and ahead > 0:
        fetched = begin + (BLOCK_K if IS_EARLY else 0)
        wanted = tl.minimum(ahead, end - fetched)
        fetch_ahead(gates + fetched, wanted, BLOCK_N, IS_CHAINED)
        if IS_GATED:
            fetch_ahead(ups + fetched, wanted, BLOCK_N, IS_CHAINED)
    if IS_EARLY:
        first = begin + tl.arange(0, BLOCK_K)
        first_w = load_weights(gates[:, None] + first[None, :], first, end, False)
        if IS_GATED:
            first_u = load_weights(ups[:, None] + first[None, :], first, end, False)
    wait_for_producer(IS_CHAINED)
    total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    up_total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    squares = tl.zeros([BLOCK_K // 8, BLOCK_B], tl.float32)
    x_rows = x + token.to(tl.int64) * x_stride
    later = begin
    if IS_EARLY:
        is_first = is_token[None, :] & (first < end)[:, None]
        first_value = tl.load(x_rows[None, :] + first[:, None], mask=is_first, other=0.0)
        later += BLOCK_K
    for start in range(later, end, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        is_inside = is_token[None, :] if IS_EVEN else (k < size)[:, None] & is_token[None, :]
        value = tl.load(x_rows[None, :] + k[:, None], mask=is_inside, other=0.0)
        value, squares = _weighted(value, k, norm, size, squares, BLOCK_K, BLOCK_B)
        w = load_weights(gates[:, None] + k[None, :], k, size, IS_EVEN)
        total = tl.dot(w.to(value.dtype), value, total, input_precision="ieee")
        if IS_GATED:
            u = load_weights(ups[:, None] + k[None, :], k, size, IS_EVEN)
            up_total = tl.dot(u.to(value.dtype), value, up_total, input_precision="ieee")
    if IS_EARLY:  # last, so that the pipeline did not have to wait for it
        value, squares = _weighted(first_value, first, norm, size, squares, BLOCK_K, BLOCK_B)
        first_w = hold(first_w, IS_HELD).to(value.dtype)
        total = tl.dot(first_w, value, total, input_precision="ieee")
        if IS_GATED:
            first_u = hold(first_u, IS_HELD).to(value.dtype)
            up_total = tl.dot(first_u, value, up_total, input_precision="ieee")
    # What follows the sums is asked for before the sums of other splits: one wait, not two.
    is_stored = is_token[:, None] & (n < num_rows)[None, :]
    cell = token.to(tl.int64)[:, None], n[None, :]
    if residual is not None:
        addend = tl.load(residual + cell[0] * residual_stride + cell[1], mask=is_stored)
    square = tl.sum(squares, 0)
    if SPLITS > 1:
        index = tl.program_id(2) * tl.num_programs(0) + tile
        total, up_total, square, is_last = gather(
            total, up_total, square, partials, counters, index, split,
            IS_GATED, norm is not None, SPLITS, BLOCK_N, BLOCK_B,
        )  # fmt: skip
        if not is_last:
            return
    if norm is not None:
        root = tl.rsqrt(square / size + epsilon)[None, :]
        total *= root
        if IS_GATED:
            up_total *= root
    total = finish(total, up_total, scales, bias, row, num_rows, cap, IS_GATED, IS_GELU)
    result = tl.trans(total)
    if residual is not None:
        result += addend.to(tl.float32)
    result = result.to(out.dtype.element_ty)
    tl.store(out + cell[0] * out_stride + cell[1], result, mask=is_stored)


@triton.jit
def _weighted(
    value: tl.tensor,
    k: tl.tensor,
    norm: tl.tensor,
    size: tl.tensor,
    squares: tl.tensor,
    BLOCK_K: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Columns k of x [BLOCK_K, BLOCK_B] times the norm's weights, and their squares added up."""
    if norm is not None:
        factor = tl.load(norm + k, mask=k < size, other=0.0).to(tl.float32)
        wide = value.to(tl.float32)
        # Eight columns are one thread's, so that nothing is exchanged in here.
        squares += tl.sum(tl.reshape(wide * wide, [BLOCK_K // 8, 8, BLOCK_B]), 1)
        value = (wide * factor[:, None]).to(value.dtype)
    return value, squares


@triton.jit
def finish(
    total: tl.tensor,
    up_total: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    cap: tl.tensor,
    IS_GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
):
    """What follows the sums of BLOCK_N rows [BLOCK_N, BLOCK_B], up to the residual."""
    if scales is not None:
        total *= tl.load(scales + row).to(tl.float32)[:, None]
        if IS_GATED:
            up_total *= tl.load(scales + row + num_rows).to(tl.float32)[:, None]
    if bias is not None:
        total += tl.load(bias + row).to(tl.float32)[:, None]
        if IS_GATED:
            up_total += tl.load(bias + row + num_rows).to(tl.float32)[:, None]
    if IS_GATED:
        total = activate(total, IS_GELU) * up_total
    if cap is not None:
        total = soft_cap(total, cap)
    return total


@triton.jit
def load_weights(pointers: tl.tensor, column: tl.tensor, size: tl.tensor, IS_EVEN: tl.constexpr):
    """A tile of weights; they are used once, so they need not stay in the cache."""
    if IS_EVEN:
        return tl.load(pointers, eviction_policy="evict_first")
    return tl.load(pointers, mask=(column < size)[None, :], other=0, eviction_policy="evict_first")


@triton.jit
def gather(
    total: tl.tensor,
    up_total: tl.tensor,
    square: tl.tensor,
    partials: tl.tensor,
    counters: tl.tensor,
    index: tl.tensor,
    split: tl.tensor,
    IS_GATED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Store the partial sums; the last program of a tile gets the sums of all splits."""
    PARTS: tl.constexpr = 2 if IS_GATED else 1
    AREA: tl.constexpr = BLOCK_N * BLOCK_B
    SHARE: tl.constexpr = PARTS * AREA + (BLOCK_B if HAS_NORM else 0)
    area = tl.arange(0, BLOCK_N)[:, None] * BLOCK_B + tl.arange(0, BLOCK_B)[None, :]
    base = partials + index.to(tl.int64) * (SPLITS * SHARE)
    bases = base + area
    lines = base + PARTS * AREA + tl.arange(0, BLOCK_B)
    tl.store(bases + split * SHARE, total)
    if IS_GATED:
        tl.store(bases + split * SHARE + AREA, up_total)
    if HAS_NORM:
        tl.store(lines + split * SHARE, square)
    tl.debug_barrier()  # all threads have stored before one of them counts
    is_last = tl.atomic_add(counters + index, 1, sem="acq_rel") == SPLITS - 1
    if is_last:
        total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
        up_total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
        square = tl.zeros([BLOCK_B], tl.float32)
        for part in tl.static_range(SPLITS):
            total += tl.load(bases + part * SHARE, cache_modifier=".cg")
            if IS_GATED:
                up_total += tl.load(bases + part * SHARE + AREA, cache_modifier=".cg")
            if HAS_NORM:
                square += tl.load(lines + part * SHARE, cache_modifier=".cg")
        tl.store(counters + index, 0)
    return total, up_total, square, is_last
