"""Keys and values of one head, some positions at a time, by way of the block table."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.producer import fetch_ahead


@triton.jit
def load_tile(
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    start: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    block_stride: tl.tensor,
    position_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    IS_EARLY: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Keys and values [BLOCK_T, BLOCK_D] from ``start``; zeros before ``first`` and from ``end``.

    ``start`` is a multiple of BLOCK_T or of BLOCK_SIZE, and less than that before ``first``.

    Before the wait for the producer, not through the cache of the processor: it could be older.
    """
    t = start + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    block = _blocks(table, start, end, BLOCK_SIZE, BLOCK_T, IS_EARLY, IS_COMPILED).to(tl.int64)
    place = block * block_stride + (t % BLOCK_SIZE) * position_stride
    mask = (t < end)[:, None] & (d < HEAD_DIM)[None, :]
    if first is not None:
        mask &= (t >= first)[:, None]
    at = place[:, None] + d[None, :]
    if IS_EARLY:
        key = tl.load(keys + at, mask=mask, other=0.0, cache_modifier=".cg")
        value = tl.load(values + at, mask=mask, other=0.0, cache_modifier=".cg")
    else:
        key = tl.load(keys + at, mask=mask, other=0.0, eviction_policy="evict_first")
        value = tl.load(values + at, mask=mask, other=0.0, eviction_policy="evict_first")
    return key, value


@triton.jit
def fetch_blocks(
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    block_stride: tl.tensor,
    position_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """Ask for the first blocks of a share, where a head's positions are one piece of memory."""
    index = begin // BLOCK_SIZE + tl.arange(0, NUM_BLOCKS)
    is_wanted = index * BLOCK_SIZE < end
    block = tl.load(table + index, mask=is_wanted, other=0, cache_modifier=".cg").to(tl.int64)
    is_wanted &= position_stride == HEAD_DIM
    columns = tl.where(is_wanted, BLOCK_SIZE * HEAD_DIM, 0)[:, None]
    fetch_ahead(keys + block * block_stride, columns, NUM_BLOCKS, True)
    fetch_ahead(values + block * block_stride, columns, NUM_BLOCKS, True)


@triton.jit
def _blocks(
    table: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    IS_EARLY: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """The KV blocks of BLOCK_T positions from ``start`` on; from ``end`` on they are anyone's.

    One number for each block, not for each position: so all threads have it without an exchange.
    A pipeline asks for rounds that never come, so no entry behind the last is read.
    """
    i = tl.arange(0, BLOCK_T)
    last = tl.maximum(end - 1, 0)
    block = tl.zeros([BLOCK_T], tl.int32)
    for first in tl.static_range(0, BLOCK_T, BLOCK_SIZE):
        at = tl.minimum(start + first, last)
        found = _block_at(table, at, BLOCK_SIZE, IS_EARLY, IS_COMPILED)
        block = tl.where(i >= first, found, block)
    return block


@triton.jit
def _block_at(
    table: tl.tensor,
    position: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    IS_EARLY: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """The KV block of one position.

    A plain load would be taken for a part of the pipeline: its stages would be divided between
    table and pages, and the number brought to all threads through shared memory. Inline assembly,
    so not for the interpreter.
    """
    address = table + position // BLOCK_SIZE
    if IS_COMPILED:
        return tl.inline_asm_elementwise(
            "ld.global.cg.b32 $0, [$1];" if IS_EARLY else "ld.global.b32 $0, [$1];",
            "=r,l",
            [address.to(tl.int64)],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return tl.load(address)
