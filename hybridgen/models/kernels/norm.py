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
    residual: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
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
    if residual is not None:  # on its way while the squares are added
        at = residual + token * residual_stride + k
        addend = tl.load(at, mask=k < size, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / size + epsilon)
    result = value * scale * factor
    if residual is not None:
        result += addend
    result = result.to(out.dtype.element_ty)
    tl.store(out + token * out_stride + k, result, mask=k < size)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    epsilon: float,
    residual: torch.Tensor | None = None,
    is_chained: bool = False,
) -> None:
    """Out = (residual +) x · rsqrt(mean(x²) + epsilon) · weight, in float32, rounded once.

    Reads and writes num_tokens · size elements, and reads as many of the residual.

    Args:
        x: [num_tokens, size], any float dtype; rows may be further apart than they are long.
        weight: [size].
        out: [num_tokens, size]; may be ``x``.
        epsilon: added to the mean square.
        residual: [num_tokens, size], any float dtype; may be ``out``.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: shapes do not fit.
    """
    num_tokens, size = x.shape
    tensors = [x, out] if residual is None else [x, out, residual]
    if weight.shape != (size,) or any(
        tensor.shape != x.shape or 1 not in (tensor.stride(1), size) for tensor in tensors
    ):
        raise InternalError("operands of the norm do not fit", value=str(tuple(out.shape)))
    block = triton.next_power_of_2(size)
    _norm_kernel[(num_tokens,)](
        x, weight, residual, out, size,
        x.stride(0), None if residual is None else residual.stride(0), out.stride(0), epsilon,
        BLOCK=block, IS_CHAINED=is_chained,
        num_warps=min(max(block // 512, 1), 16), launch_pdl=is_chained,
    )  # fmt: skip
