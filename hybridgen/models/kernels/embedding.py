"""Rows of the embedding for tokens whose ids are on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer

_BLOCK = 1024


@triton.jit
def _embedding_kernel(
    ids: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    num_ids: tl.tensor,
    size: tl.tensor,
    out_stride: tl.tensor,
    scale: tl.tensor,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    token_id = tl.load(ids + token)
    token_id = tl.minimum(tl.maximum(token_id, 0), num_ids - 1).to(tl.int64)
    row = tl.load(table + token_id * size + k, mask=k < size)
    if scale is not None:
        row = row.to(tl.float32) * scale
    tl.store(out + token * out_stride + k, row.to(out.dtype.element_ty), mask=k < size)


def gather_embedding(
    ids: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float = 1.0,
    is_chained: bool = False,
) -> None:
    """out[i] = table[ids[i]] · scale; moves num_tokens · size elements each way.

    Ids outside the table are clamped into it: the host cannot be asked, and a row that is idle
    may hold anything.

    Args:
        ids: int32 or int64 [num_tokens], on the device.
        table: [vocab_size, size], contiguous.
        out: [num_tokens, size].
        scale: multiplies in float32; with 1 rows are copied.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: shapes do not fit.
    """
    num_tokens, size = out.shape
    if ids.shape != (num_tokens,) or table.shape[1] != size or not table.is_contiguous():
        raise InternalError("operands of the embedding do not fit", value=str(tuple(out.shape)))
    grid = (num_tokens, triton.cdiv(size, _BLOCK))
    _embedding_kernel[grid](
        ids, table, out, len(table), size, out.stride(0), None if scale == 1.0 else scale,
        BLOCK=_BLOCK, IS_CHAINED=is_chained, num_warps=4, launch_pdl=is_chained,
    )  # fmt: skip
