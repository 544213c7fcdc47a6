"""Whoever has no memory on the device, and however it says so, it is the same typed error."""

from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError, OutOfDeviceMemory
from hybridgen.models.cuda import driver
from hybridgen.models.cuda.device_memory import device_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 MiB.\nMore."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_no_memory_is_a_typed_error_with_what_was_asked_and_what_is_left(
    error: RuntimeError,
) -> None:
    full = pytest.raises(OutOfDeviceMemory, match="no memory left for a test")
    with full as caught, device_memory("a test"):
        raise error
    assert caught.value.fields["value"] == str(error).split("\n")[0]
    assert "MiB free" in str(caught.value.fields["limit"])
    assert "--gpu-memory" in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: an illegal memory access"), InternalError("a bug")]
)
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, device_memory("a test"):
        raise error
    assert caught.value is error


def test_the_driver_says_it_with_a_number() -> None:
    with pytest.raises(OutOfDeviceMemory, match="cuMemcpy found no memory"):
        driver._checked("cuMemcpy", (2,))
    with pytest.raises(InternalError, match="cuMemcpy failed"):
        driver._checked("cuMemcpy", (700,))
