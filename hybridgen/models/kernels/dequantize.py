"""INT8 weights in the dtype of the activations, for products that cuBLAS makes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.int8 import widen

_BLOCK = 1024


@triton.jit
def _dequantize_kernel(
    weight: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(scales + row)
    for start in range(0, size, BLOCK):
        k = start + tl.arange(0, BLOCK)
        w = tl.load(weight + row * size + k, mask=k < size, other=0, eviction_policy="evict_first")
        value = widen(w, IS_COMPILED) * scale
        tl.store(out + row * size + k, value.to(out.dtype.element_ty), mask=k < size)


def dequantize(weight: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Out = weight · scales by row, in float32, rounded once.

    Reads one byte and writes one element of ``out`` per weight. Starts when all before it in the
    stream has ended: what stood in ``out`` may have been in use until then.

    Args:
        weight: int8[num_rows, size].
        scales: float32[num_rows].
        out: [num_rows, size], any float dtype.

    Raises:
        InternalError: operands do not fit.
    """
    num_rows, size = weight.shape
    is_whole = weight.is_contiguous() and out.is_contiguous()
    if not is_whole or out.shape != weight.shape or scales.shape != (num_rows,):
        raise InternalError("operands of dequantizing do not fit", value=str(tuple(out.shape)))
    _dequantize_kernel[(num_rows,)](
        weight, scales, out, size,
        BLOCK=_BLOCK, IS_COMPILED=not triton.knobs.runtime.interpret, num_warps=4,
    )  # fmt: skip
