"""The draw of a row: Philox4x32-10 (Salmon et al., SC'11), as in sampling/philox.h."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform_of(seed_low: tl.tensor, seed_high: tl.tensor, position: tl.tensor):
    """A multiple of 2⁻⁵³ in [0, 1), float64: key seed, counter position; int32 words all three."""
    zero = (position & 0).to(tl.uint32)
    word0, word1, _, _ = tl.philox_impl(
        position.to(tl.uint32), zero, zero, zero,
        seed_low.to(tl.uint32, bitcast=True), seed_high.to(tl.uint32, bitcast=True),
    )  # fmt: skip
    upper = word0.to(tl.float64) * (2.0**21)  # with the 21 bits that follow an exact integer
    return (upper + (word1 >> 11).to(tl.float64)) * (2.0**-53)
