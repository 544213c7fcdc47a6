"""One token per row, on the device: the definition of sampling/row.h, to the bit.

Mostly the candidates of the cut decide it. Where they do not, the row itself is searched
(``row_search``): slower, with the same answer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.cut_kernel import BLOCK, CHUNK_BLOCKS
from hybridgen.models.kernels.cut_record import (
    FACT_WORDS,
    FLAGS_WORD,
    HEAD_BYTES,
    PARAMETER_WORDS,
    ROW_CHOOSE,
    ROW_CUT,
    STATE_NONE,
    STATE_TOKEN,
    WEIGHT_GRID,
    WEIGHT_SLACK,
    float_word,
    top_k_of,
    write_head,
)
from hybridgen.models.kernels.exact_weight import exact_weight
from hybridgen.models.kernels.float_order import ID_BITS, LOWEST_FINITE, key_of, unordered
from hybridgen.models.kernels.philox import uniform_of
from hybridgen.models.kernels.row_search import (
    draw_from_row,
    last_key_kept,
    lowest_of_share,
    standing,
    sum_kept,
)

#: A limit at or below zero keeps the first token, as the least positive weight would.
_LEAST_LIMIT = tl.constexpr(2.0**-60)


@triton.jit(do_not_specialize=["step", "records"])
def choose_kernel(
    logits: tl.tensor,
    parameters: tl.tensor,
    maxima: tl.tensor,
    sums: tl.tensor,
    counters: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    keys: tl.tensor,
    counts: tl.tensor,
    facts: tl.tensor,
    results: tl.tensor,
    records: tl.tensor,
    step: tl.tensor,
    row_stride: tl.tensor,
    result_stride: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    num_chunks: tl.tensor,
    capacity: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
):
    """The token of one row, to its result and its record. Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    words = parameters + row * PARAMETER_WORDS
    # All asked for before any is waited for.
    flags = tl.load(words + FLAGS_WORD)
    top = tl.load(facts + row * FACT_WORDS)
    threshold = tl.load(facts + row * FACT_WORDS + 1)
    count = tl.load(counts + row)
    scale = float_word(words, 0)
    if (flags & (ROW_CUT | ROW_CHOOSE)) != (ROW_CUT | ROW_CHOOSE):
        return
    is_valid = (top > float("-inf")) & (top < float("inf"))
    token = tl.full([], 0, tl.int32)
    row_logits = logits + row * row_stride
    if is_valid:
        if scale == 0.0:
            token = _first_of_top(
                row_logits, maxima + row * num_chunks * CHUNK_BLOCKS, top, vocab, MAX_CHUNKS
            )
        else:
            token = _draw(
                row_logits, words, sums + row * num_chunks, counters + row,
                values + row * MAX_CANDIDATES, ids + row * MAX_CANDIDATES,
                keys + row * MAX_CANDIDATES, count, step, top, threshold, scale,
                width, vocab, num_chunks, MAX_CHUNKS, MAX_CANDIDATES,
            )  # fmt: skip
    tl.store(results + row * result_stride, token)
    write_head(
        records.to(tl.int64) + row * (8 * capacity + HEAD_BYTES),
        tl.where(is_valid, STATE_TOKEN, STATE_NONE), 0, token, top, threshold, scale,
        tl.full([], 0.0, tl.float64), step, True,
    )  # fmt: skip


@triton.jit
def _first_of_top(
    row: tl.tensor, maxima: tl.tensor, top: tl.tensor, vocab: tl.tensor, MAX_CHUNKS: tl.constexpr
):
    """The lowest id whose logit is the top one."""
    block = tl.arange(0, MAX_CHUNKS * CHUNK_BLOCKS)
    peak = tl.load(maxima + block, mask=block < tl.cdiv(vocab, BLOCK), other=float("-inf"))
    first = tl.min(tl.where(peak == top, block, MAX_CHUNKS * CHUNK_BLOCKS), 0)
    token = first * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(row + token, mask=token < vocab, other=float("-inf"))
    return tl.min(tl.where(value == top, token, vocab), 0)


@triton.jit
def _draw(
    row: tl.tensor,
    words: tl.tensor,
    sums: tl.tensor,
    counter: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    keys: tl.tensor,
    count: tl.tensor,
    step: tl.tensor,
    top: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    num_chunks: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
):
    """A token of a row that is not greedy."""
    k = top_k_of(words, vocab)
    top_p = float_word(words, 2)
    min_p = float_word(words, 3)
    uniform = uniform_of(
        tl.load(words + 4), tl.load(words + 5), tl.load(words + 6) + step.to(tl.int32)
    )
    chunk = tl.arange(0, MAX_CHUNKS)
    total = tl.sum(tl.load(sums + chunk, mask=chunk < num_chunks, other=0.0), 0)
    token = tl.full([], -1, tl.int32)
    is_cut = (k > 0) | (top_p < 1.0) | (min_p > 0.0)
    if is_cut & (count > 0):
        token = _draw_from_candidates(
            values, ids, keys, count, k, top_p, min_p, uniform, total, top, threshold, scale,
            MAX_CANDIDATES,
        )  # fmt: skip
    if token < 0:
        last = tl.full([], -(1 << 62), tl.int64)
        if is_cut:
            last = _last_of_row(
                row, sums, counter, keys, k, top_p, min_p, total, top, scale,
                width, vocab, MAX_CANDIDATES,
            )  # fmt: skip
        least = tl.where(is_cut, min_p, 0.0)
        token = draw_from_row(
            row, sums, last, least, uniform, top, scale, width, vocab, num_chunks, MAX_CHUNKS
        )
    return token


@triton.jit
def _draw_from_candidates(
    values: tl.tensor,
    ids: tl.tensor,
    keys: tl.tensor,
    count: tl.tensor,
    k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    uniform: tl.tensor,
    total: tl.tensor,
    top: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    MAX_CANDIDATES: tl.constexpr,
):
    """A token drawn from the candidates; −1 if more tokens than those might be kept."""
    i = tl.arange(0, MAX_CANDIDATES)
    is_candidate = i < count
    value = tl.load(values + i, mask=is_candidate, other=float("-inf"))
    token = tl.load(ids + i, mask=is_candidate, other=0)
    weight = exact_weight(value, top, scale)
    mass = tl.where(is_candidate, weight, 0.0).to(tl.float64)
    share = top_p.to(tl.float64)
    # Below the threshold nothing is finite, or nothing weighs enough for min_p.
    is_all = threshold <= unordered(tl.full([], LOWEST_FINITE, tl.int32))
    most_below = exact_weight(threshold, top, scale).to(tl.float64) * WEIGHT_SLACK + WEIGHT_GRID
    is_rest_light = is_all | (min_p.to(tl.float64) > most_below)
    is_proven_k = (count >= k) | is_all | (is_rest_light & (top_p >= 1.0))
    is_proven_p = is_rest_light | ((top_p < 1.0) & (tl.sum(mass, 0) >= share * total))
    chosen = tl.full([], -1, tl.int32)
    if ((k > 0) & is_proven_k) | ((k == 0) & is_proven_p):
        is_kept = is_candidate & (weight >= min_p)
        if (k > 0) | (top_p < 1.0):
            key = key_of(value, token)
            tl.store(keys + i, key)
            tl.debug_barrier()
            rank, before = standing(keys, key, count, top, scale, MAX_CANDIDATES)
            is_ranked = is_candidate & ((k == 0) | (rank < k))
            whole = tl.where(k > 0, tl.sum(tl.where(is_ranked, mass, 0.0), 0), total)
            limit = tl.maximum(share * whole, _LEAST_LIMIT)
            limit = tl.where(top_p < 1.0, limit, float("inf"))
            is_kept = is_kept & is_ranked & (before < limit)
        mass = tl.where(is_kept, mass, 0.0)
        target = uniform * tl.sum(mass, 0)
        index = tl.sum((tl.cumsum(mass, 0) <= target).to(tl.int32), 0)
        chosen = tl.sum(tl.where(i == index, token, 0), 0)
    return chosen


@triton.jit
def _last_of_row(
    row: tl.tensor,
    sums: tl.tensor,
    counter: tl.tensor,
    keys: tl.tensor,
    k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    total: tl.tensor,
    top: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    MAX_CANDIDATES: tl.constexpr,
):
    """The least key that top_k and top_p keep; the chunks' sums become those of kept weights."""
    last = tl.full([], LOWEST_FINITE, tl.int64) << ID_BITS
    whole = total
    if k > 0:
        last = last_key_kept(
            row, counter, keys, last, k.to(tl.float64), False, top, scale, width, vocab,
            MAX_CANDIDATES,
        )  # fmt: skip
        whole = sum_kept(row, sums, last, 0.0, top, scale, width, vocab)
    if top_p < 1.0:
        share = top_p.to(tl.float64)
        lowest = lowest_of_share(share, whole, top, scale, vocab)
        limit = tl.maximum(share * whole, _LEAST_LIMIT)
        last_p = last_key_kept(
            row, counter, keys, lowest, limit, True, top, scale, width, vocab, MAX_CANDIDATES
        )
        last = tl.maximum(last, last_p)
    sum_kept(row, sums, last, min_p, top, scale, width, vocab)
    return last
