"""Paged attention of one new token per sequence, split over the sequence (flash-decoding).

Dao et al. 2023, "Flash-Decoding for long-context inference": the positions of a sequence are dealt
over programs; each keeps an online softmax (Milakov & Gimelshein 2018), and the last program to
finish merges the shares by their log-sum-exp. Norms and rotation of the new query and key and the
write of the new key and value happen in the same kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.attention_merge import merge_shares
from hybridgen.models.kernels.attention_tile import fetch_blocks, load_tile
from hybridgen.models.kernels.producer import hold, release_consumers, wait_for_producer
from hybridgen.models.kernels.soft_cap import soft_cap


@triton.jit(do_not_specialize=["max_splits", "min_share", "ahead"])
def decode_attention_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    cosines: tl.tensor,
    sines: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    positions: tl.tensor,
    tables: tl.tensor,
    partials: tl.tensor,
    counters: tl.tensor,
    qkv_stride: tl.tensor,
    out_stride: tl.tensor,
    table_stride: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    position_stride: tl.tensor,
    softmax_scale: tl.tensor,
    cap: tl.tensor,
    window: tl.tensor,
    epsilon: tl.tensor,
    max_splits: tl.tensor,
    min_share: tl.tensor,
    ahead: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
    USE_DOT: tl.constexpr,
    IS_EARLY: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    MERGE_CHUNK: tl.constexpr,
    BLOCKS_AHEAD: tl.constexpr,
    IS_CHAINED: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """One program attends from the query heads of one kv head to one share of the positions.

    Grid (NUM_KV_HEADS, num_sequences, max_splits). A sequence takes as many splits as give each at
    least min_share positions; the others leave at once. ``softmax_scale`` and ``cap`` are times
    log2(e). With ``window`` the shares begin at the first position that the new token sees, and no
    block before that one's is read. MAX_SPLITS is a power of two, at least max_splits. What was
    there before the chain of kernels began (see ``producer``) is read or asked for before the wait:
    position, angles, table, and the keys and values of the first ``ahead`` positions, in
    BLOCKS_AHEAD blocks at most.
    """
    head = tl.program_id(0)
    sequence = tl.program_id(1)
    split = tl.program_id(2)
    release_consumers(IS_CHAINED)
    position = tl.load(positions + sequence, cache_modifier=".cg")
    end = tl.maximum(position, 0)  # the new token itself is not read from the cache
    STEP: tl.constexpr = BLOCK_SIZE if BLOCK_SIZE < BLOCK_T else BLOCK_T
    first = None
    origin = 0
    if window is not None:
        first = tl.maximum(end + 1 - window, 0)
        origin = first // STEP * STEP
    share = tl.cdiv(tl.maximum(tl.cdiv(end - origin, max_splits), min_share), STEP) * STEP
    num_splits = tl.maximum(tl.cdiv(end - origin, share), 1)
    begin = origin + split * share
    end = tl.minimum(begin + share, end)
    table = tables + sequence.to(tl.int64) * table_stride
    key_base = keys + head.to(tl.int64) * head_stride
    value_base = values + head.to(tl.int64) * head_stride
    first_key = None
    first_value = None
    fetched = begin
    if IS_EARLY:
        first_key, first_value = load_tile(
            key_base, value_base, table, begin, first, end, block_stride, position_stride,
            HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_T, True, IS_COMPILED,
        )  # fmt: skip
        fetched = begin + BLOCK_T
    if IS_CHAINED and ahead > 0:
        fetch_blocks(
            key_base, value_base, table, fetched, tl.minimum(fetched + ahead, end),
            block_stride, position_stride,
            HEAD_DIM, BLOCK_SIZE, BLOCKS_AHEAD,
        )  # fmt: skip
    last_block = tl.load(table + tl.maximum(position, 0) // BLOCK_SIZE, cache_modifier=".cg")
    last_block = last_block.to(tl.int64)
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    cos, sin = _turn(cosines, sines, tl.maximum(position, 0), d[None, :], ROTARY)
    key_cos, key_sin = _turn(cosines, sines, tl.maximum(position, 0), d, ROTARY)
    cell = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    out_offsets = (head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    outs = out + sequence.to(tl.int64) * out_stride + out_offsets
    wait_for_producer(IS_CHAINED)
    if position < 0:  # an idle row
        if split == 0:
            tl.store(outs, tl.zeros([BLOCK_G, BLOCK_D], out.dtype.element_ty), mask=cell)
        return
    if (begin >= end) & (split > 0):
        return
    row = qkv + sequence.to(tl.int64) * qkv_stride
    heads = (head * GROUP + g)[:, None] * HEAD_DIM
    query = _rotated(
        row, heads, d[None, :], cell, cos, sin, q_norm, epsilon, 1, HEAD_DIM, ROTARY
    ) * softmax_scale  # fmt: skip
    KEYS_AT: tl.constexpr = NUM_KV_HEADS * GROUP * HEAD_DIM
    VALUES_AT: tl.constexpr = KEYS_AT + NUM_KV_HEADS * HEAD_DIM
    is_dim = d < HEAD_DIM
    key = _rotated(
        row, KEYS_AT + head * HEAD_DIM, d, is_dim, key_cos, key_sin, k_norm, epsilon, 0,
        HEAD_DIM, ROTARY,
    )  # fmt: skip
    key = key.to(keys.dtype.element_ty)
    value = tl.load(row + VALUES_AT + head * HEAD_DIM + d, mask=is_dim, other=0.0)
    value = value.to(values.dtype.element_ty)
    # The new token comes first, as the first tile may still be on its way. All splits make its
    # score, though one uses it: in a branch it would be loaded later.
    is_last = split == num_splits - 1
    score = tl.sum(query * key.to(tl.float32)[None, :], 1)
    if cap is not None:
        score = soft_cap(score, cap)
    peak = tl.where(is_last, score, -1.0e30)
    mass = tl.full([BLOCK_G], 1.0, tl.float32) * tl.where(is_last, 1.0, 0.0)
    total = tl.zeros([BLOCK_G, BLOCK_D], tl.float32) + value.to(tl.float32)[None, :]
    total = tl.where(is_last, total, 0.0)
    if is_last:
        place = last_block * block_stride + (position % BLOCK_SIZE) * position_stride + d
        tl.store(key_base + place, key, mask=is_dim)
        tl.store(value_base + place, value, mask=is_dim)
    asked = query.to(keys.dtype.element_ty) if USE_DOT else query
    peak, mass, total = _attend(
        asked, peak, mass, total, first_key, first_value, key_base, value_base, table,
        begin, first, end, block_stride, position_stride, cap,
        HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_T, STAGES, USE_DOT, IS_EARLY,
        IS_CHAINED and IS_COMPILED, IS_COMPILED,
    )  # fmt: skip
    if num_splits == 1:
        tl.store(outs, (total * (1.0 / mass)[:, None]).to(out.dtype.element_ty), mask=cell)
        return
    merge_shares(
        peak, mass, total, partials, counters,
        out + sequence.to(tl.int64) * out_stride + head * (GROUP * HEAD_DIM),
        sequence * NUM_KV_HEADS + head, split, num_splits,
        GROUP, HEAD_DIM, BLOCK_G, BLOCK_D, MAX_SPLITS, MERGE_CHUNK,
    )  # fmt: skip


@triton.jit
def _turn(
    cosines: tl.tensor,
    sines: tl.tensor,
    position: tl.tensor,
    d: tl.tensor,
    ROTARY: tl.constexpr,
):
    """Cosines and sines of a position, for every dimension; the first half's sines negative.

    Dimensions that are not rotated have an angle of zero.
    """
    HALF: tl.constexpr = ROTARY // 2
    angle = position.to(tl.int64) * HALF + tl.where(d < HALF, d, d - HALF)
    cos = tl.load(cosines + angle, mask=d < ROTARY, other=1.0)
    sin = tl.load(sines + angle, mask=d < ROTARY, other=0.0)
    return cos, tl.where(d < HALF, -sin, sin)


@triton.jit
def _rotated(
    row: tl.tensor,
    start: tl.tensor,
    d: tl.tensor,
    mask: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    norm: tl.tensor,
    epsilon: tl.tensor,
    AXIS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Heads at ``row + start``, normed along AXIS, with their halves rotated, float32."""
    HALF: tl.constexpr = ROTARY // 2
    mine = tl.load(row + start + d, mask=mask, other=0.0).to(tl.float32)
    partner = tl.where(d < HALF, d + HALF, d - HALF)
    other = tl.load(row + start + partner, mask=mask, other=0.0).to(tl.float32)
    if norm is not None:
        root = tl.rsqrt(tl.sum(mine * mine, AXIS, keep_dims=True) / HEAD_DIM + epsilon)
        mine *= root * tl.load(norm + d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
        other *= root * tl.load(norm + partner, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
    return mine * cos + other * sin


@triton.jit
def _attend(
    query: tl.tensor,
    peak: tl.tensor,
    mass: tl.tensor,
    total: tl.tensor,
    key0: tl.tensor,
    value0: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    block_stride: tl.tensor,
    position_stride: tl.tensor,
    cap: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
    USE_DOT: tl.constexpr,
    IS_EARLY: tl.constexpr,
    IS_HELD: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Add the positions from begin to end to peaks, masses [G] and sums [G, BLOCK_D].

    Without the matrix units there is one query head, and BLOCK_T online softmaxes side by side,
    which nothing joins before the end: so no round has a reduction over positions, and no barrier.
    A tile that was read early (``key0``, ``value0``) comes last: no round waits for it.
    """
    if USE_DOT:
        tops = peak
        shares = mass
        sums = total
    else:
        tops = tl.full([BLOCK_T], -1.0e30, tl.float32)
        shares = tl.zeros([BLOCK_T], tl.float32)
        sums = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    later = begin
    if IS_EARLY:
        later += BLOCK_T
    for start in tl.range(later, end, BLOCK_T, num_stages=STAGES):
        key, value = load_tile(
            keys, values, table, start, first, end, block_stride, position_stride,
            HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_T, False, IS_COMPILED,
        )  # fmt: skip
        tops, shares, sums = _weigh(
            query, key, value, tops, shares, sums, start, first, end, cap, BLOCK_T, USE_DOT
        )
    if IS_EARLY:  # last, so that the pipeline did not have to wait for it
        key0 = hold(key0, IS_HELD)
        value0 = hold(value0, IS_HELD)
        tops, shares, sums = _weigh(
            query, key0, value0, tops, shares, sums, begin, first, end, cap, BLOCK_T, USE_DOT
        )
    if USE_DOT:
        return tops, shares, sums
    return _join(peak, mass, total, tops, shares, sums)


@triton.jit
def _join(
    peak: tl.tensor,
    mass: tl.tensor,
    total: tl.tensor,
    tops: tl.tensor,
    shares: tl.tensor,
    sums: tl.tensor,
):
    """One softmax of BLOCK_T that stood side by side, and of what there was before."""
    top = tl.maximum(peak, tl.max(tops, 0))
    fade = tl.exp2(peak - top)
    weight = tl.exp2(tops - top)
    mass = mass * fade + tl.sum(shares * weight, 0)
    total = total * fade[:, None] + tl.sum(sums * weight[:, None], 0)[None, :]
    return top, mass, total


@triton.jit
def _weigh(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    peak: tl.tensor,
    mass: tl.tensor,
    total: tl.tensor,
    start: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    cap: tl.tensor,
    BLOCK_T: tl.constexpr,
    USE_DOT: tl.constexpr,
):
    """Online softmaxes with BLOCK_T more positions; those before first and from end on are none."""
    is_there = start + tl.arange(0, BLOCK_T) < end
    if first is not None:
        is_there &= start + tl.arange(0, BLOCK_T) >= first
    if USE_DOT:
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        if cap is not None:
            score = soft_cap(score, cap)
        score = tl.where(is_there[None, :], score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        fade = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak[:, None])
        mass = mass * fade + tl.sum(weight, 1)
        total = total * fade[:, None]
        total = tl.dot(weight.to(value.dtype), value, total, input_precision="ieee")
    else:
        score = tl.sum(query * key.to(tl.float32), 1)
        if cap is not None:
            score = soft_cap(score, cap)
        score = tl.where(is_there, score, float("-inf"))
        new_peak = tl.maximum(peak, score)
        fade = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak)
        mass = mass * fade + weight
        total = total * fade[:, None] + weight[:, None] * value.to(tl.float32)
    return new_peak, mass, total
