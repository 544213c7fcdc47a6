"""Rows of x as two limbs of a byte each, for products in integers on the matrix units."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.models.kernels.producer import release_consumers, wait_for_producer

_STEP = tl.constexpr(1 / 32639)  # 127 · 256 + 127 is the largest number of two signed limbs
_LEAST = tl.constexpr(17 << 23)  # 2⁻¹¹⁰, so that its scale is no subnormal number
_ROUND_MAGIC = tl.constexpr(12582912.0)  # 1.5 · 2²³: adding it rounds to an integer
_MAGIC_BITS = tl.constexpr(0x4B400000)
_BLOCK = 1024


@triton.jit
def _limb_rows_kernel(
    x: tl.tensor,
    norm: tl.tensor,
    limbs: tl.tensor,
    scales: tl.tensor,
    num_tokens: tl.tensor,
    size: tl.tensor,
    x_stride: tl.tensor,
    epsilon: tl.tensor,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    """BLOCK columns of one token; with a norm, all of them. Grid (tokens, blocks)."""
    token = tl.program_id(0)
    group = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    k = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    if norm is not None:
        factor = tl.load(norm + k, mask=k < size, other=0.0).to(tl.float32)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    at = x + token.to(tl.int64) * x_stride + k
    value = tl.load(at, mask=k < size, other=0.0).to(tl.float32)
    if norm is not None:
        squares = tl.sum(tl.sum(value * value, 1), 0)
        value *= tl.rsqrt(squares / size + epsilon) * factor
    # As integers, for a NaN is the largest of them.
    top = tl.max(tl.abs(value).to(tl.int32, bitcast=True), 1)
    scale = tl.maximum(top, _LEAST).to(tl.float32, bitcast=True) * _STEP
    steps = value * (1.0 / scale)[:, None] + _ROUND_MAGIC
    number = steps.to(tl.int32, bitcast=True) - _MAGIC_BITS
    high = (number + 128) >> 8
    low = number - high * 256
    row = limbs + token.to(tl.int64) * 2 * size + k
    tl.store(row, high.to(tl.int8), mask=k < size)
    tl.store(row + size, low.to(tl.int8), mask=k < size)
    tl.store(scales + group * num_tokens + token, scale, mask=group * GROUP < size)


def split_rows(
    x: torch.Tensor,
    limbs: torch.Tensor,
    scales: torch.Tensor,
    *,
    group: int,
    norm: torch.Tensor | None = None,
    epsilon: float = 0.0,
    is_chained: bool = False,
) -> None:
    """Make limbs of x (normed) ≈ scale · (256 · high + low), a scale for every ``group`` columns.

    An error is at most a 65,000th of the largest magnitude in its group. A NaN or an infinity makes
    a scale that is not finite.

    Args:
        x: [num_tokens, size], any float dtype; rows may be further apart than they are long.
        limbs: int8[2 num_tokens, size]: of each token the high ones, then the low ones.
        scales: float32[⌈size / group⌉, num_tokens].
        group: a power of two, 1,024 at most.
        norm: [size], weight of a norm of x before.
        epsilon: of the norm.
        is_chained: start while the kernel before still runs (see ``producer``).
    """
    num_tokens, size = x.shape
    block = _BLOCK if norm is None else max(triton.next_power_of_2(size), group)
    _limb_rows_kernel[(num_tokens, triton.cdiv(size, block))](
        x, norm, limbs, scales, num_tokens, size, x.stride(0), epsilon,
        GROUP=group, BLOCK=block, IS_CHAINED=is_chained,
        num_warps=min(max(block // 512, 4), 16), launch_pdl=is_chained,
    )  # fmt: skip
