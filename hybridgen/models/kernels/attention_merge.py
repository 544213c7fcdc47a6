"""Shares of one softmax, each by another program, joined by the program that ends last."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def merge_shares(
    peak: tl.tensor,
    mass: tl.tensor,
    total: tl.tensor,
    partials: tl.tensor,
    counters: tl.tensor,
    out: tl.tensor,
    index: tl.tensor,
    split: tl.tensor,
    num_splits: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Store this share; the last program joins all, CHUNK at a time, and zeroes the counter.

    out: the group's first query head of a sequence. A share is stored as its result and the
    logarithm of its mass. MAX_SPLITS is a power of two.
    """
    AREA: tl.constexpr = GROUP * BLOCK_D
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    base = partials + index.to(tl.int64) * (MAX_SPLITS * (AREA + GROUP))
    masses = base + MAX_SPLITS * AREA
    mine = base + split * AREA + g[:, None] * BLOCK_D + d[None, :]
    tl.store(mine, total * (1.0 / mass)[:, None], mask=(g < GROUP)[:, None])
    tl.store(masses + split * GROUP + g, peak + tl.log2(mass), mask=g < GROUP)
    tl.debug_barrier()  # all threads have stored before one of them counts
    if tl.atomic_add(counters + index, 1, sem="acq_rel") == num_splits - 1:
        _join(base, out, num_splits, GROUP, HEAD_DIM, BLOCK_D, MAX_SPLITS, CHUNK)
        tl.store(counters + index, 0)


@triton.jit
def _join(
    base: tl.tensor,
    out: tl.tensor,
    num_splits: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Store the mean of all shares, weighed by their masses.

    The loads of a chunk are on their way together, and a thread sees the same elements of every
    share: so memory is waited for once, and no thread for another.
    """
    AREA: tl.constexpr = GROUP * BLOCK_D
    d = tl.arange(0, BLOCK_D)
    masses = base + MAX_SPLITS * AREA
    SPAN: tl.constexpr = triton.next_power_of_2(GROUP)
    m = tl.minimum(tl.arange(0, SPAN), GROUP - 1)
    cell = m[:, None] * BLOCK_D + d[None, :]
    top = tl.full([SPAN], -1.0e30, tl.float32)
    joined_mass = tl.zeros([SPAN], tl.float32)
    joined = tl.zeros([SPAN, BLOCK_D], tl.float32)
    for first in tl.static_range(0, MAX_SPLITS, CHUNK):
        # Triton knows no unpacking; mypy takes the empty ones for their type.
        shares = ()
        logs = ()
        for s in tl.static_range(first, first + CHUNK):
            shares = shares + (tl.load(base + s * AREA + cell, cache_modifier=".cg"),)  # type: ignore[assignment]  # noqa: RUF005
        for s in tl.static_range(first, first + CHUNK):  # last, as they are waited for first
            logs = logs + (tl.load(masses + s * GROUP + m, cache_modifier=".cg"),)  # type: ignore[assignment]  # noqa: RUF005
        new_top = top
        for s in tl.static_range(CHUNK):  # there is memory for all, with anything in it
            log = tl.where(first + s < num_splits, logs[s], -1.0e30)
            new_top = tl.maximum(new_top, log)
        fade = tl.exp2(top - new_top)
        joined_mass = joined_mass * fade
        joined = joined * fade[:, None]
        for s in tl.static_range(CHUNK):
            log = tl.where(first + s < num_splits, logs[s], -1.0e30)
            weight = tl.exp2(log - new_top)
            joined_mass += weight
            joined += tl.where(first + s < num_splits, shares[s], 0.0) * weight[:, None]
        top = new_top
    at = out + m[:, None] * HEAD_DIM + d[None, :]
    joined = (joined * (1.0 / joined_mass)[:, None]).to(out.dtype.element_ty)
    tl.store(at, joined, mask=(d < HEAD_DIM)[None, :])
