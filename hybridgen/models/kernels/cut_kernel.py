"""Rows of logits cut to their likeliest tokens: maxima first, then candidates and weights.

Logits are seen in blocks of 64, which share a maximum, and in chunks of 2,048, which share a sum.
A threshold that some number of maxima reach is reached by at least as many logits, and where
likely tokens are scattered by not many more; it is found among the maxima, and only blocks that
reach it are read again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.cut_record import (
    FACT_WORDS,
    FLAGS_WORD,
    HEAD_BYTES,
    PARAMETER_WORDS,
    ROW_CHOOSE,
    ROW_CUT,
    STATE_CANDIDATES,
    STATE_NONE,
    TOTAL_BYTE,
    float_word,
    needs_sums,
    write_head,
)
from hybridgen.models.kernels.exact_weight import exact_weight
from hybridgen.models.kernels.float_order import LOWEST_FINITE, ordered, unordered

BLOCK = tl.constexpr(64)
CHUNK = tl.constexpr(2048)
CHUNK_BLOCKS = tl.constexpr(2048 // 64)


@triton.jit
def load_logits(row: tl.tensor, token: tl.tensor, width: tl.tensor, vocab: tl.tensor):
    """Logits of tokens, −inf past the vocabulary; ``width`` of them may be read."""
    value = tl.load(row + token, mask=token < width, other=float("-inf"))
    return tl.where(token < vocab, value, float("-inf"))


@triton.jit
def maxima_kernel(
    logits: tl.tensor,
    parameters: tl.tensor,
    maxima: tl.tensor,
    tops: tl.tensor,
    row_stride: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    num_chunks: tl.tensor,
):
    """The maxima of one chunk and of its blocks. Grid (rows, num_chunks).

    A block with a NaN has the maximum +inf, as one with +inf has: no row with either is valid.
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    if (tl.load(parameters + row * PARAMETER_WORDS + FLAGS_WORD) & ROW_CUT) == 0:
        return
    block = tl.arange(0, CHUNK_BLOCKS)
    token = chunk * CHUNK + block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    value = load_logits(logits + row.to(tl.int64) * row_stride, token, width, vocab)
    value = tl.where(value != value, float("inf"), value)  # noqa: PLR0124  NaN
    peak = tl.max(value, 1)
    place = row.to(tl.int64) * num_chunks + chunk
    tl.store(maxima + place * CHUNK_BLOCKS + block, peak)
    tl.store(tops + place, tl.max(peak, 0))


@triton.jit(do_not_specialize=["step", "records", "is_choosing"])
def cut_kernel(
    logits: tl.tensor,
    parameters: tl.tensor,
    maxima: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    counters: tl.tensor,
    hits: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    counts: tl.tensor,
    facts: tl.tensor,
    records: tl.tensor,
    step: tl.tensor,
    is_choosing: tl.tensor,
    row_stride: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    num_chunks: tl.tensor,
    num_parts: tl.tensor,
    capacity: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
    PART_CHUNKS: tl.constexpr,
    HAS_CANDIDATES: tl.constexpr,
    HAS_SUMS: tl.constexpr,
):
    """Candidates of one row, or weights of PART_CHUNKS chunks of it.

    Grid (rows, 1 with HAS_CANDIDATES + num_parts with HAS_SUMS), candidates first: they take
    longest. Parts go through a row from its end: what the kernel before read last is in the cache.
    """
    row = tl.program_id(0).to(tl.int64)
    words = parameters + row * PARAMETER_WORDS
    chunk = tl.arange(0, MAX_CHUNKS)
    flags = tl.load(words + FLAGS_WORD)  # both asked for before either is waited for
    peak = tl.load(tops + row * num_chunks + chunk, mask=chunk < num_chunks, other=float("-inf"))
    if (flags & ROW_CUT) == 0:
        return
    is_chosen = ((flags & ROW_CHOOSE) != 0) & (is_choosing != 0)
    top = tl.max(peak, 0)
    is_valid = (top > float("-inf")) & (top < float("inf"))
    is_summed = is_valid & needs_sums(words, vocab, is_chosen)
    row_logits = logits + row * row_stride
    record = records.to(tl.int64) + row * (8 * capacity + HEAD_BYTES)
    part = tl.num_programs(1) - 1 - tl.program_id(1)
    if HAS_CANDIDATES and tl.program_id(1) == 0:
        _cut_row(
            row_logits, maxima + row * num_chunks * CHUNK_BLOCKS,
            hits + row * MAX_CANDIDATES // 2, values + row * MAX_CANDIDATES,
            ids + row * MAX_CANDIDATES, counts + row, facts + row * FACT_WORDS, record,
            float_word(words, 0), step, top, is_valid, is_summed, is_chosen,
            vocab, capacity, MAX_CHUNKS, MAX_CANDIDATES,
        )  # fmt: skip
    if HAS_SUMS and is_summed & (part < num_parts):
        _sum_part(
            row_logits, sums + row * num_chunks, counters + row, record, part, top,
            float_word(words, 0), is_chosen, width, vocab, num_chunks, num_parts,
            MAX_CHUNKS, PART_CHUNKS,
        )  # fmt: skip


@triton.jit
def _cut_row(
    row: tl.tensor,
    maxima: tl.tensor,
    hits: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    count_at: tl.tensor,
    facts: tl.tensor,
    record: tl.tensor,
    scale: tl.tensor,
    step: tl.tensor,
    top: tl.tensor,
    is_valid: tl.tensor,
    is_summed: tl.tensor,
    is_chosen: tl.tensor,
    vocab: tl.tensor,
    capacity: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
):
    """Candidates into the row's scratch; from there, in one piece, into its record.

    A row that the device chooses for gets its record from the choice.
    """
    threshold = top
    count = tl.full([], 0, tl.int32)
    if is_valid:
        threshold, count = _collect(
            row, maxima, hits, values, ids, top, vocab, capacity, MAX_CHUNKS, MAX_CANDIDATES
        )
    is_cut = is_valid & (count <= capacity)
    count = tl.where(is_cut, count, 0)
    tl.store(count_at, count)
    tl.store(facts, top)
    tl.store(facts + 1, threshold)
    if is_chosen == 0:
        tl.debug_barrier()  # the scratch is complete
        i = tl.arange(0, MAX_CANDIDATES)
        value = tl.load(values + i, mask=i < count)
        token = tl.load(ids + i, mask=i < count)
        place = record + HEAD_BYTES
        tl.store(place.to(tl.pointer_type(tl.float32)) + i, value, mask=i < count)
        place += 4 * capacity
        tl.store(place.to(tl.pointer_type(tl.int32)) + i, token, mask=i < count)
        state = tl.where(is_cut, STATE_CANDIDATES, STATE_NONE)
        none = tl.full([], 0.0, tl.float64)
        write_head(record, state, count, 0, top, threshold, scale, none, step, is_summed == 0)


@triton.jit
def _collect(
    row: tl.tensor,
    maxima: tl.tensor,
    hits: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    top: tl.tensor,
    vocab: tl.tensor,
    capacity: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
):
    """A threshold and how many logits reach it, more than ``capacity`` if no threshold will do.

    They go to ``values`` and ``ids``, in order of ids. The threshold is that of MAX_CANDIDATES / 4
    to MAX_CANDIDATES / 2 maxima, or of half as many until the candidates fit.
    """
    block = tl.arange(0, MAX_CHUNKS * CHUNK_BLOCKS)
    num_blocks = tl.cdiv(vocab, BLOCK)
    is_block = block < num_blocks
    peak = ordered(tl.load(maxima + block, mask=is_block, other=float("-inf")))
    high = ordered(top)
    is_small = vocab <= capacity  # everything finite is a candidate
    least = tl.min(tl.where(is_block, peak, high), 0)
    low = tl.where(is_small, LOWEST_FINITE, tl.maximum(least, LOWEST_FINITE))
    reached = tl.sum((is_block & (peak >= low)).to(tl.int32), 0)
    # With few blocks, most would be hit, and each by several logits: see to it that not all are.
    most = tl.minimum(MAX_CANDIDATES // 2, tl.maximum(num_blocks * 5 // 8, 1))
    most = tl.where(is_small, num_blocks, most)
    count = capacity + 1
    while (count > capacity) & (most > 0):
        low, reached = _threshold(peak, low, high, reached, most)
        if reached <= MAX_CANDIDATES // 2:
            count = _gather(
                row, peak, hits, values, ids, low, reached, vocab, capacity,
                MAX_CHUNKS, MAX_CANDIDATES,
            )  # fmt: skip
        most = tl.minimum(most, reached) // 2
    return unordered(low), count


@triton.jit
def _threshold(
    peak: tl.tensor, low: tl.tensor, high: tl.tensor, reached: tl.tensor, most: tl.tensor
):
    """A threshold that most / 2 to ``most`` maxima reach, more where they are equal, and how many.

    ``reached`` maxima reach ``low``; so do at least most / 2.
    """
    least = tl.maximum(most // 2, 1)
    while (low < high) & (reached > most):
        middle = (low | high) - ((low ^ high) >> 1)  # rounded up, and never overflows
        found = tl.sum((peak >= middle).to(tl.int32), 0)
        is_enough = found >= least
        low = tl.where(is_enough, middle, low)
        reached = tl.where(is_enough, found, reached)
        high = tl.where(is_enough, high, middle - 1)
    return low, reached


@triton.jit
def _gather(
    row: tl.tensor,
    peak: tl.tensor,
    hits: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    low: tl.tensor,
    num_hits: tl.tensor,
    vocab: tl.tensor,
    capacity: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
):
    """Collect the logits that reach ``low`` in the blocks that do; returns how many there are."""
    block = tl.arange(0, MAX_CHUNKS * CHUNK_BLOCKS)
    is_hit = peak >= low
    place = tl.cumsum(is_hit.to(tl.int32), 0) - 1
    tl.debug_barrier()  # an earlier try has read its hits
    tl.store(hits + place, block, mask=is_hit)
    tl.debug_barrier()
    # In two halves, for the sake of registers; both are asked for before either is waited for.
    HALF: tl.constexpr = MAX_CANDIDATES // 4
    token1, value1 = _load_hits(row, hits, 0, num_hits, vocab, HALF)
    token2, value2 = _load_hits(row, hits, HALF, num_hits, vocab, HALF)
    threshold = unordered(low)
    count = _append(values, ids, token1, value1, threshold, 0, capacity)
    return _append(values, ids, token2, value2, threshold, count, capacity)


@triton.jit
def _load_hits(
    row: tl.tensor,
    hits: tl.tensor,
    first: tl.constexpr,
    num_hits: tl.tensor,
    vocab: tl.tensor,
    NUM_HITS: tl.constexpr,
):
    """Tokens and logits of listed blocks, one row each, −inf past the end of the list."""
    hit = first + tl.arange(0, NUM_HITS)
    begin = tl.load(hits + hit, mask=hit < num_hits, other=0) * BLOCK
    token = begin[:, None] + tl.arange(0, BLOCK)[None, :]
    is_read = (hit < num_hits)[:, None] & (token < vocab)
    return token, tl.load(row + token, mask=is_read, other=float("-inf"))


@triton.jit
def _append(
    values: tl.tensor,
    ids: tl.tensor,
    token: tl.tensor,
    value: tl.tensor,
    threshold: tl.tensor,
    count: tl.tensor,
    capacity: tl.tensor,
):
    """Put those that reach the threshold behind ``count`` others; returns how many there are."""
    is_in = value >= threshold
    found = tl.sum(is_in.to(tl.int32), 1)
    before = tl.cumsum(found, 0) - found + count
    place = before[:, None] + tl.cumsum(is_in.to(tl.int32), 1) - 1
    is_stored = is_in & (place < capacity)
    tl.store(values + place, value, mask=is_stored)
    tl.store(ids + place, token, mask=is_stored)
    return count + tl.sum(found, 0)


@triton.jit
def _sum_part(
    row: tl.tensor,
    sums: tl.tensor,
    counter: tl.tensor,
    record: tl.tensor,
    part: tl.tensor,
    top: tl.tensor,
    scale: tl.tensor,
    is_chosen: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    num_chunks: tl.tensor,
    num_parts: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    PART_CHUNKS: tl.constexpr,
):
    """The chunks' sums; whoever comes last at ``counter`` adds them all up in the record."""
    chunk = part * PART_CHUNKS + tl.arange(0, PART_CHUNKS)
    token = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    value = load_logits(row, token, width, vocab)
    total = tl.sum(exact_weight(value, top, scale).to(tl.float64), 1)
    tl.store(sums + chunk, total, mask=chunk < num_chunks)
    if is_chosen == 0:
        tl.debug_barrier()  # all threads have stored before one of them counts
        if tl.atomic_add(counter, 1, sem="acq_rel") == num_parts - 1:
            each = tl.arange(0, MAX_CHUNKS)
            part_sums = tl.load(
                sums + each, mask=each < num_chunks, other=0.0, cache_modifier=".cg"
            )
            place = (record + TOTAL_BYTE).to(tl.pointer_type(tl.float64))
            tl.store(place, tl.sum(part_sums, 0))
            tl.store(counter, 0)
