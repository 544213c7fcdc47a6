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
