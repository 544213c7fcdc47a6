"""gate · up (Shazeer 2020) beside each other in one row, for products that cuBLAS makes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.activation import activate
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer

_BLOCK = 1024


@triton.jit
def _gate_kernel(
    gate_up: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    in_stride: tl.tensor,
    out_stride: tl.tensor,
    IS_GELU: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    row = gate_up + token * in_stride
    gate = tl.load(row + k, mask=k < size, other=0.0).to(tl.float32)
    up = tl.load(row + size + k, mask=k < size, other=0.0).to(tl.float32)
    if bias is not None:
        gate += tl.load(bias + k, mask=k < size, other=0.0).to(tl.float32)
        up += tl.load(bias + size + k, mask=k < size, other=0.0).to(tl.float32)
    result = activate(gate, IS_GELU) * up
    tl.store(out + token * out_stride + k, result.to(out.dtype.element_ty), mask=k < size)


def apply_gate(
    gate_up: torch.Tensor,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    is_gelu: bool = False,
    is_chained: bool = False,
) -> None:
    """Out = silu(gate) · up, in float32; reads 2 and writes 1 · num_tokens · size elements.

    Args:
        gate_up: [num_tokens, 2 size], gates first.
        out: [num_tokens, size].
        bias: [2 size], added first.
        is_gelu: gelu (by tanh) in place of silu.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: shapes do not fit.
    """
    num_tokens, size = out.shape
    if gate_up.shape != (num_tokens, 2 * size):
        raise InternalError("operands of the gate do not fit", value=str(tuple(gate_up.shape)))
    _gate_kernel[(num_tokens, triton.cdiv(size, _BLOCK))](
        gate_up, bias, out, size, gate_up.stride(0), out.stride(0),
        IS_GELU=is_gelu, BLOCK=_BLOCK, IS_CHAINED=is_chained, num_warps=4, launch_pdl=is_chained,
    )  # fmt: skip
