"""The kernel before in the stream: how its consumers start early and wait for it.

With programmatic dependent launch (CUDA programming guide, "Programmatic Dependent Launch") the
programs of a kernel start while the last ones of the kernel before still run. Activations are read
only after ``wait_for_producer``. Every kernel of a chain must wait before its first read of
anything that a kernel of the chain writes and before its first write, in all programs: completion
is then transitive, since no kernel can end before the one before it has.

What may be touched before the wait, so that memory is busy while the kernel before ends:

- Weights, rotation tables: nothing writes them.
- Positions and block tables of a step, and the keys and values of earlier positions: they are
  written before the chain begins (by earlier steps, by prefill, by the kernels that take the batch
  over) and by nobody in it. A chain must therefore begin behind a launch without ``is_chained``
  that comes after all of these in its stream, and whatever changes them next (the advance of the
  positions) must be launched without it too. Such a launch starts only when everything before it
  has ended. A step keeps this: its embedding is launched so, and so is what follows its products.

``fetch_ahead`` is harmless anyway: it moves lines to the L2 cache, which all programs share, and
hands nobody a value.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, num_threads


@triton.jit
def release_consumers(IS_CHAINED: tl.constexpr):
    """Let the next kernel's programs start as soon as all of this one's have."""
    if IS_CHAINED:
        gdc_launch_dependents()


@triton.jit
def wait_for_producer(IS_CHAINED: tl.constexpr):
    """Wait until the kernel before has ended and its writes are visible."""
    if IS_CHAINED:
        gdc_wait()


@triton.jit
def hold(tile: tl.tensor, IS_HELD: tl.constexpr):
    """The same 16-bit tile, which the compiler must not touch before this point.

    Else it would bring a tile into another layout as soon as it has been asked for, and nothing
    behind could be asked for before it has come. Costs no instruction.
    """
    if IS_HELD and tile.dtype.primitive_bitwidth == 16:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=False, pack=2
        )
    return tile


@triton.jit
def fetch_ahead(
    rows: tl.tensor, num_columns: tl.tensor, NUM_ROWS: tl.constexpr, IS_CHAINED: tl.constexpr
):
    """Ask for ``num_columns`` elements from each of ``rows`` on to come to L2; nobody waits.

    rows: pointers [NUM_ROWS] at 16-byte boundaries; num_columns: multiples of 16 bytes, one for
    all or [NUM_ROWS, 1]; none or less asks for nothing. The threads of a warp make such requests
    one after the other, so they are few and long, and spread over the warps: each thread has its
    own piece of a row, and most have none.
    """
    if IS_CHAINED:
        num_bytes = num_columns * (rows.dtype.element_ty.primitive_bitwidth // 8)
        THREADS: tl.constexpr = num_threads()
        PIECES: tl.constexpr = THREADS // NUM_ROWS if THREADS > NUM_ROWS else 1
        piece = tl.maximum(tl.cdiv(num_bytes, PIECES * 128) * 128, 4096)
        start = tl.arange(0, PIECES)[None, :] * piece
        size = tl.minimum(num_bytes - start, piece)
        address = rows.to(tl.int64)[:, None] + start
        tl.inline_asm_elementwise(
            """
            {
            .reg .pred is_wanted;
            setp.gt.s32 is_wanted, $2, 0;
            @is_wanted cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.b32 $0, 0;
            }
            """,
            "=r,l,r",
            [address, size],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
