"""The kernel before in the stream: how its consumers start early and wait for it.

With programmatic dependent launch (CUDA programming guide, "Programmatic Dependent Launch") the
programs of a kernel start while the last ones of the kernel before still run. Weights do not
depend on the kernel before, so they are fetched meanwhile; activations are read only after
``wait_for_producer``. Every kernel of a chain must wait before its first read of anything that a
kernel writes and before its first write, in all programs: completion is then transitive.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

#: Bytes that one prefetch instruction asks for.
PREFETCH_CHUNK_BYTES = 512


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
def prefetch_rows(rows: tl.tensor, ROW_BYTES: tl.constexpr):
    """Ask the L2 cache for the first ROW_BYTES, a multiple of 128, at each address of rows [n]."""
    CHUNK: tl.constexpr = 512 if ROW_BYTES % 512 == 0 else 128
    chunk = tl.arange(0, ROW_BYTES // CHUNK).to(tl.uint64) * CHUNK
    addresses = rows.to(tl.uint64)[:, None] + chunk[None, :]
    if CHUNK == 512:
        _prefetch(addresses, "cp.async.bulk.prefetch.L2.global [$1], 512; mov.u32 $0, 0;")
    else:
        _prefetch(addresses, "cp.async.bulk.prefetch.L2.global [$1], 128; mov.u32 $0, 0;")


@triton.jit
def _prefetch(addresses: tl.tensor, INSTRUCTION: tl.constexpr):
    tl.inline_asm_elementwise(
        INSTRUCTION, "=r,l", [addresses], dtype=tl.int32, is_pure=False, pack=1
    )
