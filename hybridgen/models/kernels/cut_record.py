"""What the cut and the choice share: a row's parameters, its scratch, and struct hg_cut."""

from __future__ import annotations

import triton
import triton.language as tl

#: Words of a row's parameters (scheduler/row_parameters.py) and its flags.
PARAMETER_WORDS = tl.constexpr(8)
ROW_CUT = tl.constexpr(1)
ROW_CHOOSE = tl.constexpr(2)
FLAGS_WORD = tl.constexpr(7)

#: struct hg_cut (ipc/layout.h).
STATE_NONE = tl.constexpr(0)
STATE_CANDIDATES = tl.constexpr(1)
STATE_TOKEN = tl.constexpr(2)
HEAD_BYTES = tl.constexpr(64)
TOTAL_BYTE = tl.constexpr(24)
URGENT_BYTE = tl.constexpr(40)

#: How much more than another logit's one below it may weigh: float32 rounding, and a grid step.
WEIGHT_SLACK = tl.constexpr(1.0 + 1e-5)
WEIGHT_GRID = tl.constexpr(2.0**-34)

#: float32 words of a row's facts on the device: top logit, threshold.
FACT_WORDS = tl.constexpr(2)


@triton.jit
def float_word(words: tl.tensor, index: tl.constexpr):
    """A float32 whose bits are one of a row's parameters."""
    return tl.load(words + index).to(tl.float32, bitcast=True)


@triton.jit
def top_k_of(words: tl.tensor, vocab: tl.tensor):
    """How many tokens top_k keeps; 0: all."""
    top_k = tl.load(words + 1)
    return tl.where((top_k > 0) & (top_k < vocab), top_k, 0)


@triton.jit
def needs_sums(words: tl.tensor, vocab: tl.tensor, is_chosen: tl.tensor):
    """Whether a valid row's weights are to be summed.

    A choice on the device needs them for top_p over the whole row and for temperature alone; a
    record always says them, unless the row is greedy.
    """
    is_cut = (float_word(words, 3) > 0.0) & (float_word(words, 2) >= 1.0)
    is_needed = (top_k_of(words, vocab) == 0) & (is_cut == 0)
    return (float_word(words, 0) != 0.0) & (is_needed | (is_chosen == 0))


@triton.jit
def write_head(
    record: tl.tensor,
    state: tl.tensor,
    count: tl.tensor,
    token: tl.tensor,
    top: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    total: tl.tensor,
    step: tl.tensor,
    has_total: tl.tensor,
):
    """Write struct hg_cut in one piece; without ``has_total`` its total is left as it is."""
    word = tl.arange(0, 16)
    wide_step = step.to(tl.int64)
    wide_total = total.to(tl.int64, bitcast=True)
    bits = tl.where(word == 0, state, 0)
    bits = tl.where(word == 1, count, bits)
    bits = tl.where(word == 2, token, bits)
    bits = tl.where(word == 3, top.to(tl.int32, bitcast=True), bits)
    bits = tl.where(word == 4, threshold.to(tl.int32, bitcast=True), bits)
    bits = tl.where(word == 5, scale.to(tl.int32, bitcast=True), bits)
    bits = tl.where(word == 6, wide_total.to(tl.int32), bits)
    bits = tl.where(word == 7, (wide_total >> 32).to(tl.int32), bits)
    bits = tl.where(word == 8, wide_step.to(tl.int32), bits)
    bits = tl.where(word == 9, (wide_step >> 32).to(tl.int32), bits)
    is_written = has_total | ((word != 6) & (word != 7))
    tl.store(record.to(tl.pointer_type(tl.int32)) + word, bits, mask=is_written)
