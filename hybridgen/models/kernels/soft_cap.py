"""Caps of scores and logits: c · tanh(x / c) (Bello et al. 2017)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit
def soft_cap(x: tl.tensor, limit: tl.tensor):
    """``limit`` · tanh(x / limit), by tanh y = 2 sigmoid(2y) - 1: right to 1e-7 of the limit."""
    # Below, an exponential would overflow. What is no number must stay so: it ends its request.
    twice = tl.maximum(2.0 / limit * x, -80.0, propagate_nan=tl.PropagateNan.ALL)
    return limit * (2.0 * tl.sigmoid(twice) - 1.0)


@triton.jit
def _cap_kernel(
    x: tl.tensor, limit: tl.tensor, size: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr
):
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = x + tl.program_id(0).to(tl.int64) * stride + k
    value = tl.load(at, mask=k < size, other=0.0).to(tl.float32)
    tl.store(at, soft_cap(value, limit).to(x.dtype.element_ty), mask=k < size)


def cap_rows(x: torch.Tensor, limit: float) -> None:
    """Make x [n, size] limit · tanh(x / limit), in place; reads and writes it once.

    For logits that cuBLAS made; our own products end with their cap. Rows may be further apart
    than they are long.
    """
    num_rows, size = x.shape
    _cap_kernel[(num_rows, triton.cdiv(size, _BLOCK))](
        x, limit, size, x.stride(0), BLOCK=_BLOCK, num_warps=8
    )
