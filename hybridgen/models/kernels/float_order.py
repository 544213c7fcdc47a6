"""float32 values as integers in the same order, to be bisected and packed into keys."""

from __future__ import annotations

import triton
import triton.language as tl

#: ``ordered`` of the lowest finite float32.
LOWEST_FINITE = tl.constexpr(-2139095040)

ID_BITS = tl.constexpr(19)
_MAX_ID = tl.constexpr((1 << 19) - 1)  # token ^ _MAX_ID = _MAX_ID - token


@triton.jit
def ordered(value: tl.tensor):
    """int32 that compares as ``value`` does; both zeros give the same."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(order: tl.tensor):
    """The float32 that ``ordered`` was made of."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_of(value: tl.tensor, token: tl.tensor):
    """int64 that is larger for a larger value, and among equal values for a lower token id.

    So the likeliest token has the largest key, and no two tokens share one. The key of value v is
    at least ``ordered(v) << ID_BITS`` and below ``(ordered(v) + 1) << ID_BITS``.
    """
    return (ordered(value).to(tl.int64) << ID_BITS) | (token ^ _MAX_ID)


@triton.jit
def value_of(key: tl.tensor):
    """The value that a key was made of, −0 as 0."""
    return unordered((key >> ID_BITS).to(tl.int32))
