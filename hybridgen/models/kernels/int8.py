"""Weights as float32, int8 among them faster than by the converter of the multiprocessor."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widen(w: tl.tensor, IS_COMPILED: tl.constexpr):
    """The same numbers in float32, exactly.

    The converter makes 16 numbers a cycle, which would hold int8 weights at two thirds of the
    memory's rate. A byte put under the exponent of 2²³ is 2²³ + byte without a conversion: a byte
    permutation and a subtraction. Inline assembly, so not for the interpreter.
    """
    if IS_COMPILED and w.dtype == tl.int8:
        bits = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 biased;
            xor.b32 biased, $4, 0x80808080;
            prmt.b32 $0, biased, 0x4B000000, 0x7440;
            prmt.b32 $1, biased, 0x4B000000, 0x7441;
            prmt.b32 $2, biased, 0x4B000000, 0x7442;
            prmt.b32 $3, biased, 0x4B000000, 0x7443;
            }
            """,
            "=r,=r,=r,=r,r",
            [w],
            dtype=tl.int32,
            is_pure=True,
            pack=4,
        )
        return bits.to(tl.float32, bitcast=True) - 8388736.0  # 2²³ + 128
    return w.to(tl.float32)
