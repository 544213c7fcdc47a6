"""Sixteen columns of x as integers of 16 bits, in two limbs of a byte, and products with them.

x ≈ scale · (256 · high + low) with one power of two for the sixteen: the largest of them becomes
2¹⁴ to 2¹⁵, so an error is at most 2⁻¹⁵ of the largest. What bfloat16 holds is exact down to a 128th
of it. INT8 weights stay as they are: the multiprocessor multiplies four
bytes by four and adds up in one instruction, where a weight in float32 takes three.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.linear_choice import LIMB_GROUP

GROUP = tl.constexpr(LIMB_GROUP)
_STEP = tl.constexpr(2.0**-14)
_ONE = tl.constexpr(127 << 23)  # of float32: exponents are counted in bits 23 to 30
_INVERSE_STEP = tl.constexpr((127 + 14) << 23)
_INFINITY = tl.constexpr(0x7F800000)
_LEAST = tl.constexpr(15 << 23)  # 2⁻¹¹²: what is smaller is counted in steps of 2⁻¹²⁶
_ROUND_MAGIC = tl.constexpr(12582912.0)  # 1.5 · 2²³: the sum's low 16 bits are the integer


@triton.jit
def load_limbs(x: tl.tensor, group: tl.tensor, is_inside: tl.tensor, IS_COMPILED: tl.constexpr):
    """Groups of x as (scales, low limbs, high limbs): float32[groups], int32[groups, 2, 2] each.

    Each [j, i] a word of 4 limbs: that of columns 8i + 4j on. x: [size], any float dtype;
    group: [groups], numbers of groups; is_inside: which of them exist, or None for all. An
    infinity or a NaN gives an infinite scale, and so no finite product.
    """
    pair = group[:, None] * GROUP + tl.arange(0, 8)[None, :]  # 16 bytes of half precision
    if is_inside is None:
        first = tl.load(x + pair).to(tl.float32)
        second = tl.load(x + pair + 8).to(tl.float32)
    else:
        first = tl.load(x + pair, mask=is_inside[:, None], other=0.0).to(tl.float32)
        second = tl.load(x + pair + 8, mask=is_inside[:, None], other=0.0).to(tl.float32)
    top = tl.maximum(_top(first), _top(second), propagate_nan=tl.PropagateNan.ALL)
    bits = tl.minimum(top.to(tl.int32, bitcast=True), _INFINITY)
    # Rounded up a little before the largest would become 2¹⁵ by rounding.
    power = tl.maximum((bits + 0x8000) & _INFINITY, _LEAST)
    scale = power.to(tl.float32, bitcast=True) * _STEP
    factor = (-power + _ONE + _INVERSE_STEP).to(tl.float32, bitcast=True)
    low, high = _limbs(first, factor, IS_COMPILED)
    more_low, more_high = _limbs(second, factor, IS_COMPILED)
    return scale, tl.join(low, more_low), tl.join(high, more_high)


@triton.jit
def _top(x: tl.tensor):
    """The largest magnitude of each row of x [groups, 8]; a NaN if there is one."""
    fours = _larger(tl.reshape(tl.abs(x), [x.shape[0], 2, 2, 2]))
    return _larger(_larger(fours))


@triton.jit
def _larger(pairs: tl.tensor):
    a, b = tl.split(pairs)
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _limbs(x: tl.tensor, factor: tl.tensor, IS_COMPILED: tl.constexpr):
    """Of x [groups, 8] low limbs and high ones, two words of 4 each, [groups, 2]."""
    shifted = (x * factor[:, None] + _ROUND_MAGIC).to(tl.int32, bitcast=True)
    even, odd = tl.split(tl.reshape(shifted, [x.shape[0], 2, 2, 2]))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    if IS_COMPILED:
        low, high = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 ab, cd;
            prmt.b32 ab, $2, $3, 0x5140;
            prmt.b32 cd, $4, $5, 0x5140;
            prmt.b32 $0, ab, cd, 0x5410;
            prmt.b32 $1, ab, cd, 0x7632;
            }
            """,
            "=r,=r,r,r,r,r",
            [a, b, c, d],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        low = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24
        high = (a >> 8 & 255) | (b & 0xFF00) | (c & 0xFF00) << 8 | (d & 0xFF00) << 16
    return low, high


@triton.jit
def limb_product(
    w: tl.tensor, scale: tl.tensor, low: tl.tensor, high: tl.tensor, IS_COMPILED: tl.constexpr
):
    """Σ over each group of weights times columns, float32[rows, groups]: exact sums, rounded once.

    w: int32[rows, 4 · groups], words of 4 weights; the others are of ``load_limbs``. The sums are
    below 2²⁶.
    """
    GROUPS: tl.constexpr = w.shape[1] // 4
    if IS_COMPILED:
        even, odd = tl.split(tl.reshape(w, [w.shape[0], GROUPS, 2, 2]))
        w0, w2 = tl.split(even)
        w1, w3 = tl.split(odd)
        half, other = tl.split(low)
        low0, low1 = tl.split(half)
        low2, low3 = tl.split(other)
        half, other = tl.split(high)
        high0, high1 = tl.split(half)
        high2, high3 = tl.split(other)
        total = tl.inline_asm_elementwise(
            """
            {
            .reg .s32 sum;
            mov.s32 sum, 0;
            dp4a.s32.s32 sum, $1, $9, sum;
            dp4a.s32.s32 sum, $2, $10, sum;
            dp4a.s32.s32 sum, $3, $11, sum;
            dp4a.s32.s32 sum, $4, $12, sum;
            shl.b32 sum, sum, 8;
            dp4a.s32.u32 sum, $1, $5, sum;
            dp4a.s32.u32 sum, $2, $6, sum;
            dp4a.s32.u32 sum, $3, $7, sum;
            dp4a.s32.u32 $0, $4, $8, sum;
            }
            """,
            "=r,r,r,r,r,r,r,r,r,r,r,r,r",
            [
                w0, w1, w2, w3,
                low0[None, :], low1[None, :], low2[None, :], low3[None, :],
                high0[None, :], high1[None, :], high2[None, :], high3[None, :],
            ],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        place = tl.arange(0, 4)[None, :] * 8
        low = tl.reshape(tl.trans(low, 0, 2, 1), [4 * GROUPS])[:, None] >> place & 255
        high = tl.reshape(tl.trans(high, 0, 2, 1), [4 * GROUPS])[:, None] << (24 - place) >> 24
        number = w[:, :, None] << (24 - place)[None, :, :] >> 24
        products = number * (high * 256 + low)[None, :, :]
        total = tl.sum(tl.reshape(products, [w.shape[0], GROUPS, GROUP]), 2)
    return total.to(tl.float32) * scale[None, :]
