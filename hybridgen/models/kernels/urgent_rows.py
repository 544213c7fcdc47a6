"""Whole rows that samplers need at once, sent before all others.

A row's cut mostly decides its token. Where it does not, and where a request asks for more than a
cut can tell, a sampler waits for the whole row while the device waits for the sampler. All rows
of a step take far longer to copy than one, so those few go first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.models.kernels.cut import CutWorkspace
from hybridgen.models.kernels.cut_record import (
    FACT_WORDS,
    FLAGS_WORD,
    HEAD_BYTES,
    PARAMETER_WORDS,
    ROW_CUT,
    URGENT_BYTE,
    WEIGHT_GRID,
    WEIGHT_SLACK,
    float_word,
    top_k_of,
)
from hybridgen.models.kernels.exact_weight import exact_weight

#: Programs that share a row, and rows that are under way at once: few, so that the first are there
#: while others have yet to be sent, and enough to keep the way to the host busy.
_PARTS, _GROUPS = 32, 4
#: Logits that a program sends at a time.
_BLOCK = 2048

#: Words of the list of urgent rows: how many, programs that are through with it, the rows.
_NUM_ENDED = tl.constexpr(1)
_FIRST = tl.constexpr(2)


@triton.jit
def list_kernel(
    parameters: tl.tensor,
    sums: tl.tensor,
    values: tl.tensor,
    counts: tl.tensor,
    facts: tl.tensor,
    urgent: tl.tensor,
    vocab: tl.tensor,
    num_chunks: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
):
    """Put a row on the list if it is urgent. Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    words = parameters + row * PARAMETER_WORDS
    is_urgent = (tl.load(words + FLAGS_WORD) & ROW_CUT) == 0
    if is_urgent == 0:
        is_urgent = _is_undecided(
            words, sums + row * num_chunks, values + row * MAX_CANDIDATES, counts + row,
            facts + row * FACT_WORDS, vocab, num_chunks, MAX_CHUNKS, MAX_CANDIDATES,
        )  # fmt: skip
    if is_urgent:
        tl.store(urgent + _FIRST + tl.atomic_add(urgent, 1, sem="relaxed"), row.to(tl.int32))


@triton.jit(do_not_specialize=["records", "targets", "step", "is_sending"])
def send_kernel(
    logits: tl.tensor,
    counters: tl.tensor,
    urgent: tl.tensor,
    records: tl.tensor,
    targets: tl.tensor,
    step: tl.tensor,
    is_sending: tl.tensor,
    row_stride: tl.tensor,
    target_stride: tl.tensor,
    vocab: tl.tensor,
    capacity: tl.tensor,
    PARTS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """A part of every GROUPS-th row of the list; who sends a row's last part says so.

    Grid (PARTS, GROUPS). The program that ends last empties the list.
    """
    part = tl.program_id(0)
    num_rows = tl.where(is_sending != 0, tl.load(urgent), 0)
    for index in range(tl.program_id(1), num_rows, GROUPS):
        row = tl.load(urgent + _FIRST + index).to(tl.int64)
        source = logits + row * row_stride
        target = (targets.to(tl.int64) + row * target_stride * 4).to(tl.pointer_type(tl.float32))
        for start in range(part * BLOCK, vocab, PARTS * BLOCK):
            token = start + tl.arange(0, BLOCK)
            value = tl.load(source + token, mask=token < vocab)
            tl.store(target + token, value, mask=token < vocab)
        tl.debug_barrier()  # all threads have stored before one of them counts
        if tl.atomic_add(counters + row, 1, sem="acq_rel", scope="sys") == PARTS - 1:
            tl.store(counters + row, 0)
            record = records.to(tl.int64) + row * (8 * capacity + HEAD_BYTES)
            _publish(record + URGENT_BYTE, step.to(tl.int64), IS_COMPILED)
    if tl.atomic_add(urgent + _NUM_ENDED, 1, sem="acq_rel") == PARTS * GROUPS - 1:
        tl.store(urgent, 0)
        tl.store(urgent + _NUM_ENDED, 0)


@triton.jit
def _publish(place: tl.tensor, word: tl.tensor, IS_COMPILED: tl.constexpr):
    """Store a word for the host behind all that was stored before."""
    if IS_COMPILED:
        tl.inline_asm_elementwise(
            "st.release.sys.global.b64 [$1], $2; mov.b32 $0, 0;", "=r,l,l", [place, word],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(place.to(tl.pointer_type(tl.int64)), word)


@triton.jit
def _is_undecided(
    words: tl.tensor,
    sums: tl.tensor,
    values: tl.tensor,
    count_at: tl.tensor,
    facts: tl.tensor,
    vocab: tl.tensor,
    num_chunks: tl.tensor,
    MAX_CHUNKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
):
    """Whether tokens may be kept that are not among a row's candidates: sampling/cut.c's rule."""
    top = tl.load(facts)
    threshold = tl.load(facts + 1)
    count = tl.load(count_at)
    scale = float_word(words, 0)
    top_p = float_word(words, 2)
    k = top_k_of(words, vocab)
    i = tl.arange(0, MAX_CANDIDATES)
    value = tl.load(values + i, mask=i < count, other=float("-inf"))
    weight = tl.where(i < count, exact_weight(value, top, scale), 0.0)
    chunk = tl.arange(0, MAX_CHUNKS)
    total = tl.sum(tl.load(sums + chunk, mask=chunk < num_chunks, other=0.0), 0)
    share = tl.where(top_p < 1.0, top_p, 1.0).to(tl.float64)
    most_below = exact_weight(threshold, top, scale).to(tl.float64) * WEIGHT_SLACK + WEIGHT_GRID
    is_rest_dropped = float_word(words, 3).to(tl.float64) > most_below
    is_mass_there = tl.sum(weight.to(tl.float64), 0) >= share * total
    holds_all = tl.where(k > 0, count >= k, is_rest_dropped | is_mass_there)
    return (count == 0) | ((scale != 0.0) & (holds_all == 0))


def send_urgent_rows(
    logits: torch.Tensor,
    params: torch.Tensor,
    step: int,
    record: int,
    target: int,
    row_floats: int,
    workspace: CutWorkspace,
    *,
    is_sending: bool = True,
) -> None:
    """Send every row without the flag ROW_CUT, and those that their cuts do not decide.

    Behind ``cut_rows`` in its stream, with nothing chosen on the device. Whoever finds the step in
    the urgent word of a record may read that row. Two launches; moves 4 · vocab bytes a row.

    Args:
        logits: as ``cut_rows`` had them.
        params: as before.
        step: the same.
        record: the same.
        target: address, as the device sees it, of the first row's place; the others follow.
        row_floats: between two places.
        workspace: the same.
        is_sending: else the kernels are compiled, and nothing is sent.

    Raises:
        InternalError: operands do not fit.
    """
    workspace.check_rows(logits, params, record)
    num_rows, w = len(logits), workspace
    list_kernel[(num_rows,)](
        params, w.sums, w.values, w.counts, w.facts, w.urgent, w.vocab, w.num_chunks,
        MAX_CHUNKS=w.max_chunks, MAX_CANDIDATES=w.max_candidates,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    send_kernel[(_PARTS, _GROUPS)](
        logits, w.counters, w.urgent, record, target, step, int(is_sending),
        logits.stride(0), row_floats, w.vocab, w.capacity,
        PARTS=_PARTS, GROUPS=_GROUPS, BLOCK=_BLOCK,
        IS_COMPILED=not triton.knobs.runtime.interpret, num_warps=4,
    )  # fmt: skip
