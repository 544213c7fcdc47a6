"""Searching a whole row, where its candidates do not decide: passes over the row by one program.

A pass tests three keys at once. The range of keys in question is narrowed, by value while that
makes sense, until so few tokens lie in it that they can be compared with each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.cut_kernel import CHUNK, load_logits
from hybridgen.models.kernels.exact_weight import exact_weight
from hybridgen.models.kernels.float_order import (
    ID_BITS,
    key_of,
    ordered,
    unordered,
    value_of,
)

#: Below every key.
_NO_KEY = tl.constexpr(-(1 << 62))
#: Keys compared with all others in one turn.
_GROUP = tl.constexpr(8)
#: A range of logits wider than this is halved by exponent rather than by value.
_SMOOTH_RANGE = tl.constexpr(4096.0)
#: Rounded to the grid of weights, this is nothing.
_LEAST_WEIGHT = tl.constexpr(2.0**-36)
#: Far above what a logarithm and a weight lose in float32.
_LOG_SLACK = tl.constexpr(0.01)


@triton.jit
def standing(
    keys: tl.tensor,
    key: tl.tensor,
    count: tl.tensor,
    top: tl.tensor,
    scale: tl.tensor,
    MAX_KEYS: tl.constexpr,
):
    """How many of the ``count`` keys in memory are above each key, and what they weigh together.

    All are compared with all: no order of work between them, so no waiting.
    """
    rank = tl.zeros([MAX_KEYS, _GROUP], tl.int32)
    mass = tl.zeros([MAX_KEYS, _GROUP], tl.float64)
    for first in tl.range(0, count, _GROUP, num_stages=3):
        i = first + tl.arange(0, _GROUP)
        other = tl.load(keys + i, mask=i < count, other=_NO_KEY)
        weight = exact_weight(value_of(other), top, scale)
        weight = tl.where(i < count, weight, 0.0).to(tl.float64)
        is_above = (other[None, :] > key[:, None]) & (i < count)[None, :]
        rank += is_above.to(tl.int32)
        mass += tl.where(is_above, weight[None, :], 0.0)
    return tl.sum(rank, 1), tl.sum(mass, 1)


@triton.jit
def _reach(
    row: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    third: tl.tensor,
    is_weighted: tl.constexpr,
    top: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
):
    """How many tokens reach each of three keys, and their weight (or number again), float64."""
    i = tl.arange(0, CHUNK)
    count1 = tl.zeros([CHUNK], tl.int32)
    count2 = tl.zeros([CHUNK], tl.int32)
    count3 = tl.zeros([CHUNK], tl.int32)
    mass1 = tl.zeros([CHUNK], tl.float64)
    mass2 = tl.zeros([CHUNK], tl.float64)
    mass3 = tl.zeros([CHUNK], tl.float64)
    for start in tl.range(0, vocab, CHUNK, num_stages=3):
        value = load_logits(row, start + i, width, vocab)
        key = key_of(value, start + i)
        count1 += (key >= first).to(tl.int32)
        count2 += (key >= second).to(tl.int32)
        count3 += (key >= third).to(tl.int32)
        if is_weighted:
            weight = exact_weight(value, top, scale).to(tl.float64)
            mass1 += tl.where(key >= first, weight, 0.0)
            mass2 += tl.where(key >= second, weight, 0.0)
            mass3 += tl.where(key >= third, weight, 0.0)
    if is_weighted:
        sum1, sum2, sum3 = tl.sum(mass1, 0), tl.sum(mass2, 0), tl.sum(mass3, 0)
    else:
        sum1 = tl.sum(count1, 0).to(tl.float64)
        sum2 = tl.sum(count2, 0).to(tl.float64)
        sum3 = tl.sum(count3, 0).to(tl.float64)
    return tl.sum(count1, 0), tl.sum(count2, 0), tl.sum(count3, 0), sum1, sum2, sum3


@triton.jit
def _between(low: tl.tensor, high: tl.tensor, quarter: tl.constexpr):
    """A key above ``low`` and at most ``high``, a number of quarters from one to the other."""
    low_order, high_order = low >> ID_BITS, high >> ID_BITS
    low_value = unordered(low_order.to(tl.int32))
    span = unordered(high_order.to(tl.int32)) - low_value
    by_value = ordered(low_value + span * (quarter * 0.25)).to(tl.int64) << ID_BITS
    by_key = low + ((high - low) >> 2) * quarter
    is_smooth = (span < _SMOOTH_RANGE) & (high_order - low_order > 8)
    key = tl.where(is_smooth, by_value, by_key)
    return tl.minimum(tl.maximum(key, low + 1), high)


@triton.jit
def lowest_of_share(
    share: tl.tensor, whole: tl.tensor, top: tl.tensor, scale: tl.tensor, vocab: tl.tensor
):
    """A key that everything within ``share`` of the weight ``whole`` reaches.

    Tokens that weigh less than (1 − share) · whole / vocab weigh less than what a share leaves
    out, all together; and those below 2⁻³⁷ weigh nothing.
    """
    least = ((1.0 - share) * whole / vocab).to(tl.float32)
    y = tl.log2(tl.maximum(least, _LEAST_WEIGHT)) - _LOG_SLACK
    return ordered(top + y / scale).to(tl.int64) << ID_BITS


@triton.jit
def last_key_kept(
    row: tl.tensor,
    counter: tl.tensor,
    keys: tl.tensor,
    low: tl.tensor,
    limit: tl.tensor,
    is_weighted: tl.constexpr,
    top: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    MAX_KEYS: tl.constexpr,
):
    """From the largest key down, the one at which the number or weight so far reaches ``limit``.

    Weights from key ``low`` on must reach it; where tokens do not, ``low``. ``limit`` is above
    zero; ``keys`` is scratch for MAX_KEYS keys, ``counter`` zero before and after.
    """
    high = key_of(top, tl.full([], 0, tl.int32))
    # Those above the range are ``num_above``, and short of the limit; with those in the range
    # they are at most ``num_low``, and reach it.
    num_above = tl.full([], 0, tl.int32)
    num_low = num_above + vocab
    above = tl.full([], 0.0, tl.float64)
    if is_weighted == 0:
        num_low, _, _, at_low, _, _ = _reach(
            row, low, low, low, is_weighted, top, scale, width, vocab
        )  # fmt: skip
        high = tl.where(at_low < limit, low, high)
    while (num_low - num_above > MAX_KEYS) & (low < high):
        first = _between(low, high, 1)
        second = tl.maximum(_between(low, high, 2), first)
        third = tl.maximum(_between(low, high, 3), second)
        count1, count2, count3, sum1, sum2, sum3 = _reach(
            row, first, second, third, is_weighted, top, scale, width, vocab
        )
        # Sums fall from the first key to the third: where does the limit lie between them?
        in3, in2, in1 = sum3 >= limit, sum2 >= limit, sum1 >= limit
        high = tl.where(in3, high, tl.where(in2, third, tl.where(in1, second, first)) - 1)
        num_next = tl.where(in2, count3, tl.where(in1, count2, count1))
        sum_next = tl.where(in2, sum3, tl.where(in1, sum2, sum1))
        num_above = tl.where(in3, num_above, num_next)
        above = tl.where(in3, above, sum_next)
        low = tl.where(in3, third, tl.where(in2, second, tl.where(in1, first, low)))
        num_low = tl.where(in3, count3, tl.where(in2, count2, tl.where(in1, count1, num_low)))
    last = low
    if low < high:
        last = _last_in_range(
            row, counter, keys, low, high, above, limit, is_weighted, top, scale, width, vocab,
            MAX_KEYS,
        )  # fmt: skip
    return last


@triton.jit
def _last_in_range(
    row: tl.tensor,
    counter: tl.tensor,
    keys: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    above: tl.tensor,
    limit: tl.tensor,
    is_weighted: tl.constexpr,
    top: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    MAX_KEYS: tl.constexpr,
):
    """The same where at most MAX_KEYS keys are left, and ``above`` is what lies above them."""
    i = tl.arange(0, CHUNK)
    for start in tl.range(0, vocab, CHUNK, num_stages=3):
        key = key_of(load_logits(row, start + i, width, vocab), start + i)
        is_in = (key >= low) & (key <= high)
        place = tl.atomic_add(counter + i * 0, 1, mask=is_in, sem="relaxed")
        tl.store(keys + place, key, mask=is_in)  # in no order: none is needed
    tl.debug_barrier()
    count = tl.load(counter, cache_modifier=".cg")
    k = tl.arange(0, MAX_KEYS)
    key = tl.load(keys + k, mask=k < count, other=_NO_KEY)
    rank, mass = standing(keys, key, count, top, scale, MAX_KEYS)
    before = mass if is_weighted else rank.to(tl.float64)
    is_kept = (k < count) & (above + before < limit)
    tl.debug_barrier()  # everybody has read the counter
    tl.store(counter, 0)
    return tl.min(tl.where(is_kept, key, high), 0)


@triton.jit
def sum_kept(
    row: tl.tensor,
    sums: tl.tensor,
    last: tl.tensor,
    min_p: tl.tensor,
    top: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
):
    """Sum the weights of each chunk from key ``last`` on that are at least ``min_p``.

    Returns the sum of all.
    """
    i = tl.arange(0, CHUNK)
    tl.debug_barrier()  # what the sums were before has been read
    total = tl.full([], 0.0, tl.float64)
    for start in tl.range(0, vocab, CHUNK, num_stages=3):
        value = load_logits(row, start + i, width, vocab)
        part = tl.sum(_kept(value, start + i, last, min_p, top, scale), 0)
        tl.store(sums + start // CHUNK, part)
        total += part
    tl.debug_barrier()
    return total


@triton.jit
def _kept(
    value: tl.tensor,
    token: tl.tensor,
    last: tl.tensor,
    min_p: tl.tensor,
    top: tl.tensor,
    scale: tl.tensor,
):
    """Weights of kept tokens, float64, and 0 for the others."""
    weight = exact_weight(value, top, scale)
    is_kept = (key_of(value, token) >= last) & (weight >= min_p)
    return tl.where(is_kept, weight, 0.0).to(tl.float64)


@triton.jit
def draw_from_row(
    row: tl.tensor,
    sums: tl.tensor,
    last: tl.tensor,
    min_p: tl.tensor,
    uniform: tl.tensor,
    top: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    vocab: tl.tensor,
    num_chunks: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
):
    """The lowest id at which the running sum of kept weights exceeds ``uniform`` of all."""
    chunk = tl.arange(0, MAX_CHUNKS)
    part = tl.load(sums + chunk, mask=chunk < num_chunks, other=0.0, cache_modifier=".cg")
    target = uniform * tl.sum(part, 0)
    chosen = tl.sum((tl.cumsum(part, 0) <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(chunk < chosen, part, 0.0), 0)
    token = chosen * CHUNK + tl.arange(0, CHUNK)
    value = load_logits(row, token, width, vocab)
    running = before + tl.cumsum(_kept(value, token, last, min_p, top, scale), 0)
    return chosen * CHUNK + tl.sum((running <= target).to(tl.int32), 0)
