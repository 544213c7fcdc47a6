"""A device without memory, as an error of ours.

All that a step needs is there before the first one. What prompts take from torch's allocator is the
results of attention (``attention_calls``), and, where a kernel or a library's plan was not warmed
up, what loading it takes. torch gives back what it has cached and tries again before it raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hybridgen.errors import OutOfDeviceMemory

_MIB = 1 << 20
#: How libraries put it that raise a RuntimeError without a class of its own.
_PHRASES = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


@contextmanager
def device_memory(work: str) -> Iterator[None]:
    """Around what may allocate on the device.

    Args:
        work: what is being done, for people.

    Raises:
        OutOfDeviceMemory: in place of whatever torch, a library or the driver raised for it.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise memory_full(work, str(error).partition("\n")[0]) from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the device had no memory, rather than a fault."""
    is_typed = isinstance(error, torch.OutOfMemoryError)
    return is_typed or any(phrase in str(error) for phrase in _PHRASES)


def memory_full(work: str, said: str) -> OutOfDeviceMemory:
    """The error, with what the device has left."""
    free_bytes, total_bytes = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    return OutOfDeviceMemory(
        f"the device has no memory left for {work}",
        value=said,
        limit=f"{free_bytes // _MIB} of {total_bytes // _MIB} MiB free",
        remedy="Start with a lower --gpu-memory, --kv-cache-memory or --num-kv-blocks: "
        "more is left for the work then",
        have_bytes=free_bytes,
    )
