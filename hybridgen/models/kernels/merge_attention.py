"""Two attentions of the same queries over different keys, made one (Dao et al. 2022, section 3.1).

The softmax over all keys is the mean of the softmaxes over each part, weighted by the sums of the
exponentials of their scores, which both know as logarithms.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError

_BLOCK_ROWS = 16


# Rows and where they begin are different for every chunk: a kernel for each kind of number would be
# compiled while requests wait.
@triton.jit(do_not_specialize=["sums", "part_sums", "num_rows", "sums_stride", "part_sums_stride"])
def _merge_kernel(
    out: tl.tensor,
    sums: tl.tensor,
    part: tl.tensor,
    part_sums: tl.tensor,
    num_rows: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    sums_stride: tl.tensor,
    part_stride: tl.tensor,
    part_head_stride: tl.tensor,
    part_sums_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    d = tl.arange(0, BLOCK_D)
    is_row = row < num_rows
    mask = is_row[:, None] & (d < HEAD_DIM)[None, :]
    sums_at = sums + head * sums_stride + row
    own = tl.load(sums_at, mask=is_row, other=0.0)
    other = tl.load(part_sums + head * part_sums_stride + row, mask=is_row, other=0.0)
    largest = tl.maximum(own, other)
    own_weight = tl.exp(own - largest)
    other_weight = tl.exp(other - largest)
    total = own_weight + other_weight
    out_at = out + row[:, None] * out_stride + head * out_head_stride + d[None, :]
    part_at = part + row[:, None] * part_stride + head * part_head_stride + d[None, :]
    mine = tl.load(out_at, mask=mask, other=0.0).to(tl.float32)
    theirs = tl.load(part_at, mask=mask, other=0.0).to(tl.float32)
    merged = mine * (own_weight / total)[:, None] + theirs * (other_weight / total)[:, None]
    tl.store(out_at, merged.to(out.dtype.element_ty), mask=mask)
    tl.store(sums_at, largest + tl.log(total), mask=is_row)


def merge_attention(
    out: torch.Tensor, sums: torch.Tensor, part: torch.Tensor, part_sums: torch.Tensor
) -> None:
    """Take what ``part`` attended to into ``out`` and ``sums``, in place; in float32.

    Reads num_rows · num_heads · head_dim elements twice and writes them once.

    Args:
        out: [num_rows, num_heads, head_dim], attention over some keys.
        sums: float32[num_heads, num_rows], logarithms of the sums of the exponentials of its
            scores.
        part: as ``out``, over other keys.
        part_sums: as ``sums``.

    Raises:
        InternalError: shapes or strides do not fit.
    """
    num_rows, num_heads, head_dim = out.shape
    wanted = (num_heads, num_rows)
    problems = {
        "out": out.stride(2) != 1,
        "part": part.shape != out.shape or part.stride(2) != 1,
        "sums": sums.shape != wanted or sums.dtype != torch.float32 or sums.stride(1) != 1,
        "part_sums": part_sums.shape != wanted
        or part_sums.dtype != torch.float32
        or part_sums.stride(1) != 1,
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("attentions to merge do not fit", value=", ".join(wrong))
    _merge_kernel[(triton.cdiv(num_rows, _BLOCK_ROWS), num_heads)](
        out, sums, part, part_sums, num_rows,
        out.stride(0), out.stride(1), sums.stride(0),
        part.stride(0), part.stride(1), part_sums.stride(0),
        HEAD_DIM=head_dim, BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_ROWS=_BLOCK_ROWS,
        num_warps=4,
    )  # fmt: skip
