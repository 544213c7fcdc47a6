"""Root-mean-square normalization (Zhang & Sennrich 2019), one token per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer


@triton.jit
def _norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    epsilon: tl.tensor,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    factor = tl.load(weight + k, mask=k < size, other=0.0).to(tl.float32)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    value = tl.load(x + token * x_stride + k, mask=k < size, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / size + epsilon)
    result = (value * scale * factor).to(out.dtype.element_ty)
    tl.store(out + token * out_stride + k, result, mask=k < size)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    epsilon: float,
    is_chained: bool = False,
) -> None:
    """Out = x · rsqrt(mean(x²) + epsilon) · weight, in float32, rounded once.

    Reads and writes num_tokens · size elements.

    Args:
        x: [num_tokens, size], any float dtype; rows may be further apart than they are long.
        weight: [size].
        out: [num_tokens, size]; may be ``x``.
        epsilon: added to the mean square.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: shapes do not fit.
    """
    num_tokens, size = x.shape
    if out.shape != x.shape or weight.shape != (size,) or 1 not in (x.stride(1), size):
        raise InternalError("operands of the norm do not fit", value=str(tuple(out.shape)))
    block = triton.next_power_of_2(size)
    _norm_kernel[(num_tokens,)](
        x, weight, out, size, x.stride(0), out.stride(0), epsilon,
        BLOCK=block, IS_CHAINED=is_chained,
        num_warps=min(max(block // 512, 1), 16), launch_pdl=is_chained,
    )  # fmt: skip
