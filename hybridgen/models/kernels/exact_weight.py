"""The weight of a logit, in the very bits that the native sampler computes (sampling/lanes.h).

Every step is one float32 operation, rounded to nearest: kernels that use it are launched with
``enable_fp_fusion=False``, for a fused multiply-add rounds once where the sampler rounds twice.
Weights are multiples of 2⁻³⁴ and at most 1, so any sum of up to 2¹⁹ of them is exact in float64:
it depends neither on the order nor on who adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Largest vocabulary whose sums are exact.
MAX_VOCAB = 1 << 19

_FLOOR = tl.constexpr(-127.0)
_ROUND_MAGIC = tl.constexpr(12582912.0)  # 1.5 · 2²³: adding it rounds to an integer
_POLY1 = tl.constexpr(float.fromhex("0x1.62e42ap-1"))
_POLY2 = tl.constexpr(float.fromhex("0x1.ebf9bcp-3"))
_POLY3 = tl.constexpr(float.fromhex("0x1.c6b752p-5"))
_POLY4 = tl.constexpr(float.fromhex("0x1.3cea88p-7"))
_POLY5 = tl.constexpr(float.fromhex("0x1.5bba14p-10"))
_GRID = tl.constexpr(2.0**-11)  # its last place is 2⁻³⁴


@triton.jit
def exact_weight(value: tl.tensor, top: tl.tensor, scale: tl.tensor):
    """2^((value − top) · scale), float32; 0 for −inf. ``top`` is finite and at least ``value``."""
    y = tl.maximum((value - top) * scale, _FLOOR)
    shifted = y + _ROUND_MAGIC
    f = y - (shifted - _ROUND_MAGIC)
    p = f * _POLY5 + _POLY4
    p = p * f + _POLY3
    p = p * f + _POLY2
    p = p * f + _POLY1
    p = p * f + 1.0
    power = shifted.to(tl.int32, bitcast=True) << 23
    p = (p.to(tl.int32, bitcast=True) + power).to(tl.float32, bitcast=True)
    return tl.where(p < _GRID, (p + _GRID) - _GRID, p)
