"""The function that gates go through, for the kernels that end with one."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activate(x: tl.tensor, IS_GELU: tl.constexpr):
    """silu(x), or gelu(x) by tanh (Hendrycks & Gimpel 2016): ½x(1 + tanh y) = x · sigmoid(2y)."""
    if IS_GELU:
        twice = 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 · √(2/π)
        return x * tl.sigmoid(tl.maximum(twice, -80.0))  # below, an exponential would overflow
    return x * tl.sigmoid(x)
