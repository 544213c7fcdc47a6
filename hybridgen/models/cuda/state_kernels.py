"""What a step does to the batch state, one small launch each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.models.cuda.batch_state import RESULT_WORDS


@triton.jit(do_not_specialize=["address", "num_rows"])
def _begin_kernel(  # noqa: ANN202, PLR0917  compiled: it has no Python type
    origins: tl.tensor,
    address: tl.tensor,
    ids: tl.tensor,
    num_rows: tl.tensor,
    RESULT_WORDS: tl.constexpr,  # noqa: N803  compile-time constants are written so
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < num_rows
    results = address.to(tl.pointer_type(tl.int32))
    origin = tl.load(origins + row, mask=is_row, other=-1)
    mask = is_row & (origin >= 0)
    chosen = tl.load(results + origin * RESULT_WORDS, mask=mask, other=0, cache_modifier=".cv")
    tl.store(ids + row, tl.where(origin >= 0, chosen, -1 - origin), mask=is_row)
    tl.store(origins + row, row, mask=is_row)


@triton.jit
def _advance_kernel(  # noqa: ANN202  compiled: it has no Python type
    positions: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803  compile-time constants are written so
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(positions + row, mask=row < num_rows, other=-1)
    tl.store(positions + row, position + 1, mask=position >= 0)


def begin_rows(origins: torch.Tensor, results_address: int, ids: torch.Tensor) -> None:
    """As ``BatchState.begin``, for rows 0 … len(origins) - 1.

    Args:
        origins: int32[n]; set to the rows themselves.
        results_address: of int32[max_rows, 4], the token id first: in the device's memory, or in
            the host's, where the device reads no more than the words it needs.
        ids: int32[n].
    """
    block = min(triton.next_power_of_2(len(origins)), 256)
    _begin_kernel[(triton.cdiv(len(origins), block),)](
        origins, results_address, ids, len(origins), RESULT_WORDS=RESULT_WORDS, BLOCK=block
    )


def advance_rows(positions: torch.Tensor) -> None:
    """One further, int32[n]; rows below 0 stay."""
    block = min(triton.next_power_of_2(len(positions)), 256)
    _advance_kernel[(triton.cdiv(len(positions), block),)](positions, len(positions), BLOCK=block)
