"""Paged attention of one new token per sequence, split over the sequence (flash-decoding).

Dao et al. 2023, "Flash-Decoding for long-context inference": the positions of a sequence are dealt
over programs; each keeps an online softmax (Milakov & Gimelshein 2018), and the last program to
finish merges the shares by their log-sum-exp. Rotation of the new query and key and the write of
the new key and value happen in the same kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.producer import release_consumers, wait_for_producer


@triton.jit(do_not_specialize=["max_splits", "min_share"])
def decode_attention_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    cosines: tl.tensor,
    sines: tl.tensor,
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
    max_splits: tl.tensor,
    min_share: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
    USE_DOT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    """One program attends from the query heads of one kv head to one share of the positions.

    Grid (NUM_KV_HEADS, num_sequences, max_splits). A sequence takes as many splits as give each at
    least min_share positions; the others leave at once. ``softmax_scale`` is times log2(e).
    MAX_SPLITS is a power of two, at least max_splits.
    """
    head = tl.program_id(0)
    sequence = tl.program_id(1)
    split = tl.program_id(2)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    position = tl.load(positions + sequence)
    num_wanted = tl.minimum(tl.cdiv(position + 1, min_share), max_splits)
    share = tl.cdiv(tl.cdiv(position + 1, tl.maximum(num_wanted, 1)), BLOCK_T) * BLOCK_T
    num_splits = tl.cdiv(position + 1, tl.maximum(share, 1))
    begin = split * share
    end = tl.minimum(begin + share, position)  # the new token itself is not read from the cache
    table = tables + sequence.to(tl.int64) * table_stride
    key_base = keys + head.to(tl.int64) * head_stride
    value_base = values + head.to(tl.int64) * head_stride
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    cell = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    out_offsets = (head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    outs = out + sequence.to(tl.int64) * out_stride + out_offsets
    if position < 0:  # an idle row
        if split == 0:
            tl.store(outs, tl.zeros([BLOCK_G, BLOCK_D], out.dtype.element_ty), mask=cell)
        return
    if split >= num_splits:
        return
    row = qkv + sequence.to(tl.int64) * qkv_stride
    query = _rotated(
        row, (head * GROUP + g)[:, None] * HEAD_DIM, d[None, :], cell,
        cosines, sines, position, HEAD_DIM,
    ) * softmax_scale  # fmt: skip
    # The new token is loaded by all splits, though one uses it: at the end it would be waited for.
    KEYS_AT: tl.constexpr = NUM_KV_HEADS * GROUP * HEAD_DIM
    VALUES_AT: tl.constexpr = KEYS_AT + NUM_KV_HEADS * HEAD_DIM
    is_dim = d < HEAD_DIM
    key = _rotated(
        row, KEYS_AT + head * HEAD_DIM, d, is_dim, cosines, sines, position, HEAD_DIM
    ).to(keys.dtype.element_ty)
    value = tl.load(row + VALUES_AT + head * HEAD_DIM + d, mask=is_dim, other=0.0)
    value = value.to(values.dtype.element_ty)
    if USE_DOT:
        peak, mass, total = _attend_by_dot(
            query.to(keys.dtype.element_ty), key_base, value_base, table, begin, end,
            block_stride, position_stride,
            HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_G, BLOCK_T, STAGES,
        )  # fmt: skip
    else:
        peak, mass, total = _attend_by_row(
            query, key_base, value_base, table, begin, end, block_stride, position_stride,
            HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_T, STAGES,
        )  # fmt: skip
    if split == num_splits - 1:
        block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
        place = block * block_stride + (position % BLOCK_SIZE) * position_stride + d
        tl.store(key_base + place, key, mask=is_dim)
        tl.store(value_base + place, value, mask=is_dim)
        score = tl.sum(query * key.to(tl.float32)[None, :], 1)
        new_peak = tl.maximum(peak, score)
        fade = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak)
        mass = mass * fade + weight
        total = total * fade[:, None] + weight[:, None] * value.to(tl.float32)[None, :]
        peak = new_peak
    if num_splits == 1:
        tl.store(outs, (total / mass[:, None]).to(out.dtype.element_ty), mask=cell)
        return
    _merge(
        peak, mass, total, partials, counters, out + sequence.to(tl.int64) * out_stride, head,
        sequence * NUM_KV_HEADS + head, split, num_splits, max_splits,
        GROUP, HEAD_DIM, BLOCK_G, BLOCK_D, MAX_SPLITS,
    )  # fmt: skip


@triton.jit
def _rotated(
    row: tl.tensor,
    start: tl.tensor,
    d: tl.tensor,
    mask: tl.tensor,
    cosines: tl.tensor,
    sines: tl.tensor,
    position: tl.tensor,
    HEAD_DIM: tl.constexpr,
):
    """Heads at ``row + start`` with their halves rotated to ``position``, float32."""
    HALF: tl.constexpr = HEAD_DIM // 2
    is_first = d < HALF
    mine = tl.load(row + start + d, mask=mask, other=0.0).to(tl.float32)
    partner = tl.where(is_first, d + HALF, d - HALF)
    other = tl.load(row + start + partner, mask=mask, other=0.0).to(tl.float32)
    angle = position.to(tl.int64) * HALF + tl.where(is_first, d, d - HALF)
    cos = tl.load(cosines + angle, mask=d < HEAD_DIM, other=0.0)
    sin = tl.load(sines + angle, mask=d < HEAD_DIM, other=0.0)
    return mine * cos + tl.where(is_first, -other, other) * sin


@triton.jit
def _attend_by_row(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    block_stride: tl.tensor,
    position_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One query head: BLOCK_T online softmaxes side by side, which nothing joins before the end.

    So no iteration has a reduction over positions, and no barrier.
    """
    d = tl.arange(0, BLOCK_D)
    peak = tl.full([BLOCK_T], -1.0e30, tl.float32)
    mass = tl.zeros([BLOCK_T], tl.float32)
    total = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for start in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        t = start + tl.arange(0, BLOCK_T)
        block = tl.load(table + t // BLOCK_SIZE, mask=t < end, other=0).to(tl.int64)
        place = block * block_stride + (t % BLOCK_SIZE) * position_stride
        mask = (t < end)[:, None] & (d < HEAD_DIM)[None, :]
        key = tl.load(keys + place[:, None] + d[None, :], mask=mask, other=0.0)
        value = tl.load(values + place[:, None] + d[None, :], mask=mask, other=0.0)
        score = tl.sum(query * key.to(tl.float32), 1)
        score = tl.where(t < end, score, float("-inf"))
        new_peak = tl.maximum(peak, score)
        fade = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak)
        mass = mass * fade + weight
        total = total * fade[:, None] + weight[:, None] * value.to(tl.float32)
        peak = new_peak
    top = tl.max(peak, 0)
    fade = tl.exp2(peak - top)
    joined = tl.sum(total * fade[:, None], 0)
    one = tl.zeros([1], tl.float32)
    return one + top, one + tl.sum(mass * fade, 0), joined[None, :]


@triton.jit
def _attend_by_dot(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    block_stride: tl.tensor,
    position_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
):
    """All query heads of a group at once on the matrix units."""
    d = tl.arange(0, BLOCK_D)
    peak = tl.full([BLOCK_G], -1.0e30, tl.float32)
    mass = tl.zeros([BLOCK_G], tl.float32)
    total = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for start in tl.range(begin, end, BLOCK_T, num_stages=STAGES):
        t = start + tl.arange(0, BLOCK_T)
        block = tl.load(table + t // BLOCK_SIZE, mask=t < end, other=0).to(tl.int64)
        place = block * block_stride + (t % BLOCK_SIZE) * position_stride
        mask = (t < end)[:, None] & (d < HEAD_DIM)[None, :]
        key = tl.load(keys + place[:, None] + d[None, :], mask=mask, other=0.0)
        value = tl.load(values + place[:, None] + d[None, :], mask=mask, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        score = tl.where((t < end)[None, :], score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        fade = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak[:, None])
        mass = mass * fade + tl.sum(weight, 1)
        total = total * fade[:, None]
        total = tl.dot(weight.to(value.dtype), value, total, input_precision="ieee")
        peak = new_peak
    return peak, mass, total


@triton.jit
def _merge(
    peak: tl.tensor,
    mass: tl.tensor,
    total: tl.tensor,
    partials: tl.tensor,
    counters: tl.tensor,
    out: tl.tensor,
    head: tl.tensor,
    index: tl.tensor,
    split: tl.tensor,
    num_splits: tl.tensor,
    max_splits: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """Store this share; the last program joins all shares at once and leaves the counter at 0."""
    AREA: tl.constexpr = GROUP * BLOCK_D
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    base = partials + index.to(tl.int64) * max_splits * (AREA + 2 * GROUP)
    peaks = base + max_splits * AREA
    masses = peaks + max_splits * GROUP
    mine = base + split * AREA + g[:, None] * BLOCK_D + d[None, :]
    tl.store(mine, total, mask=(g < GROUP)[:, None])
    tl.store(peaks + split * GROUP + g, peak, mask=g < GROUP)
    tl.store(masses + split * GROUP + g, mass, mask=g < GROUP)
    tl.debug_barrier()  # all threads have stored before one of them counts
    if tl.atomic_add(counters + index, 1, sem="acq_rel") != num_splits - 1:
        return
    s = tl.arange(0, MAX_SPLITS)
    for member in tl.static_range(GROUP):
        is_share = s < num_splits
        at = s * GROUP + member
        share_peak = tl.load(peaks + at, mask=is_share, other=-1.0e30, cache_modifier=".cg")
        share_mass = tl.load(masses + at, mask=is_share, other=0.0, cache_modifier=".cg")
        share_at = base + s[:, None] * AREA + member * BLOCK_D + d[None, :]
        share = tl.load(share_at, mask=is_share[:, None], other=0.0, cache_modifier=".cg")
        weight = tl.exp2(share_peak - tl.max(share_peak, 0))
        joined = tl.sum(share * weight[:, None], 0) / tl.sum(share_mass * weight, 0)
        at = out + (head * GROUP + member) * HEAD_DIM + d
        tl.store(at, joined.to(out.dtype.element_ty), mask=d < HEAD_DIM)
    tl.store(counters + index, 0)
