"""Random numbers that are a function of (seed, position) and of nothing else.

Philox4x32-10 after Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC'11). The seed is the key, the absolute position the counter, so any sampler can repeat any
draw, before or after a restart. The native kernel holds the same function (philox.h); this one is
for people and tests.
"""

from __future__ import annotations

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10

Block = tuple[int, int, int, int]


def philox(counter: Block, key: tuple[int, int]) -> Block:
    """Four random words for a counter of four words and a key of two (32 bits each)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        a = _MULTIPLIERS[0] * c0
        b = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _MASK, (a >> 32) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The draw for the token at ``position``: a multiple of 2⁻⁵³ in [0, 1).

    Its 53 bits are the upper ones of the block's first two words, first word on top.
    """
    block = philox(
        (position & _MASK, position >> 32 & _MASK, 0, 0), (seed & _MASK, seed >> 32 & _MASK)
    )
    return float((block[0] << 32 | block[1]) >> 11) * 2.0**-53
