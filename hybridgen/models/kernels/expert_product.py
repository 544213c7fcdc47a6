"""The two products of every expert over the tokens that chose it, in one launch each."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.activation import activate
from hybridgen.models.kernels.expert_choice import ExpertTile, max_tiles
from hybridgen.models.kernels.expert_groups import TILE_WORDS, ExpertGroups
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer


class ExpertMatrix(NamedTuple):
    """One matrix of every expert.

    Attributes:
        weight: [num_experts, num_rows, size], contiguous; int8, bf16, fp16 or float32. Gated:
            [num_experts, 2 num_rows, size], gates first.
        scales: float32[num_experts, weight rows], for int8.
        is_gated: the result is the activated gates · ups.
        is_gelu: gates go through gelu (by tanh) instead of silu.
    """

    weight: torch.Tensor
    scales: torch.Tensor | None = None
    is_gated: bool = False
    is_gelu: bool = False

    @property
    def num_rows(self) -> int:
        """Outputs of one expert."""
        return self.weight.shape[1] // (2 if self.is_gated else 1)


@triton.jit(do_not_specialize=["num_rows"])
def expert_product_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    order: tl.tensor,
    tiles: tl.tensor,
    num_tiles: tl.tensor,
    num_rows: tl.tensor,
    size: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    NUM_CHOSEN: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    IS_EVEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_B: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    """One program makes BLOCK_N columns for one tile of an expert's tokens.

    Grid (most tiles there can be, tiles of rows): neighbours share weights, which the second of
    them finds in the cache; programs beyond the tiles of this batch end at once. The weights are
    the left operand, as in ``split_dot``. A token's sums depend on no other token.
    """
    tile = tl.program_id(0)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    if tile >= tl.load(num_tiles):
        return
    words = tiles + tile * TILE_WORDS
    expert = tl.load(words).to(tl.int64)
    place = tl.load(words + 1) + tl.arange(0, BLOCK_B)
    is_token = place < tl.load(words + 2)
    choice = tl.load(order + place, mask=is_token, other=0)
    source = choice // NUM_CHOSEN if IS_GATED else place
    target = place if IS_GATED else choice
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, num_rows - 1).to(tl.int64)
    row += expert * num_rows * (2 if IS_GATED else 1)
    gates = weight + row * size
    ups = gates + num_rows.to(tl.int64) * size
    x_rows = x + source.to(tl.int64) * x_stride
    total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    up_total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    for start in range(0, size, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        is_inside = is_token[None, :] if IS_EVEN else (k < size)[:, None] & is_token[None, :]
        value = tl.load(x_rows[None, :] + k[:, None], mask=is_inside, other=0.0)
        w = _weights(gates[:, None] + k[None, :], k, size, IS_EVEN)
        total = tl.dot(w.to(value.dtype), value, total, input_precision="ieee")
        if IS_GATED:
            u = _weights(ups[:, None] + k[None, :], k, size, IS_EVEN)
            up_total = tl.dot(u.to(value.dtype), value, up_total, input_precision="ieee")
    if scales is not None:
        total *= tl.load(scales + row)[:, None]
        if IS_GATED:
            up_total *= tl.load(scales + row + num_rows)[:, None]
    if IS_GATED:
        total = activate(total, IS_GELU) * up_total
    at = out + target.to(tl.int64)[:, None] * out_stride + n[None, :]
    is_stored = is_token[:, None] & (n < num_rows)[None, :]
    tl.store(at, tl.trans(total).to(out.dtype.element_ty), mask=is_stored)


@triton.jit
def _weights(pointers: tl.tensor, column: tl.tensor, size: tl.tensor, IS_EVEN: tl.constexpr):
    if IS_EVEN:
        return tl.load(pointers)
    return tl.load(pointers, mask=(column < size)[None, :], other=0)


def expert_product(
    x: torch.Tensor,
    matrix: ExpertMatrix,
    groups: ExpertGroups,
    out: torch.Tensor,
    *,
    num_chosen: int,
    num_choices: int,
    tile: ExpertTile,
    is_chained: bool = False,
) -> None:
    """Products of experts, summed in float32, rounded once.

    Gated: from each token's row of x to a row of ``out`` for each place. Otherwise: from the row
    of x at each place to the row of ``out`` of that choice. Must move the weights of the experts
    that were chosen once, and no others'; idle rows are not written.

    Args:
        x: [num_tokens, size] if gated, else [num_choices, size]; in the dtype of the weights (any
            float dtype for int8).
        matrix: the weights.
        groups: tables that were made with ``tile.block_b``.
        out: [num_choices, num_rows], any float dtype; not ``x``.
        num_chosen: choices of one token.
        num_choices: of the batch.
        tile: blocks.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: operands do not fit.
    """
    num_experts, weight_rows, size = matrix.weight.shape
    num_rows = matrix.num_rows
    num_tiles = max_tiles(num_choices, num_experts, tile.block_b)
    x_rows = num_choices // num_chosen if matrix.is_gated else num_choices
    is_int8 = matrix.weight.dtype == torch.int8
    problems = {
        "x": x.shape != (x_rows, size) or x.stride(1) != 1,
        "weight": not matrix.weight.is_contiguous(),
        "dtype": matrix.weight.dtype not in (x.dtype, torch.int8),
        "scales": (matrix.scales is None) == is_int8
        or (matrix.scales is not None and matrix.scales.shape != (num_experts, weight_rows)),
        "out": out.shape != (num_choices, num_rows) or out.stride(1) != 1,
        "groups": len(groups.tiles) < num_tiles or len(groups.order) < num_choices,
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("operands of a product of experts do not fit", value=", ".join(wrong))
    expert_product_kernel[(num_tiles, triton.cdiv(num_rows, tile.block_n))](
        x, matrix.weight, matrix.scales, out, *groups,
        num_rows, size, x.stride(0), out.stride(0),
        NUM_CHOSEN=num_chosen, IS_GATED=matrix.is_gated, IS_GELU=matrix.is_gelu,
        IS_EVEN=size % tile.block_k == 0,
        BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, BLOCK_B=tile.block_b, TILE_WORDS=TILE_WORDS,
        IS_CHAINED=is_chained,
        num_warps=tile.num_warps, num_stages=tile.num_stages, launch_pdl=is_chained,
    )  # fmt: skip
