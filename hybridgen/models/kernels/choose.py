"""The checked door to the choice of tokens on the device."""

from __future__ import annotations

import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.choose_kernel import choose_kernel
from hybridgen.models.kernels.cut import CutWorkspace, readable_width


def choose_rows(
    logits: torch.Tensor,
    params: torch.Tensor,
    step: int,
    record: int,
    results: torch.Tensor,
    workspace: CutWorkspace,
) -> None:
    """Choose the token of every row with the flags ROW_CUT and ROW_CHOOSE.

    The token is what the native sampler would choose of the same logits, always; 0 for a row that
    is not valid (a NaN, +inf, or nothing finite), whose record then says HG_CUT_NONE.

    Reads the candidates of ``cut_rows``, or, for temperature alone, the sums of chunks and one
    chunk. Where more tokens than the candidates may be kept, the row itself, some six to a dozen
    times. Writes one word of the results and the 64 bytes of a record's head per row. One launch.

    Args:
        logits: float32[num_rows, vocab], as ``cut_rows`` had them just before in this stream.
        params: int32[num_rows, PARAMETER_WORDS], as before.
        step: the same.
        record: the same.
        results: int32[num_rows, words]; the first word of each row becomes its token.
        workspace: the same.

    Raises:
        InternalError: operands do not fit.
    """
    workspace.check_rows(logits, params, record)
    num_rows, w = len(logits), workspace
    if results.dim() != 2 or len(results) != num_rows or results.dtype != torch.int32:
        raise InternalError(
            "results do not fit the rows", value=str(tuple(results.shape)), limit=num_rows
        )
    choose_kernel[(num_rows,)](
        logits, params, w.maxima, w.sums, w.counters, w.values, w.ids, w.keys, w.counts, w.facts,
        results, record, step, logits.stride(0), results.stride(0), readable_width(logits),
        w.vocab, w.num_chunks, w.capacity,
        MAX_CHUNKS=w.max_chunks, MAX_CANDIDATES=w.max_candidates,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
