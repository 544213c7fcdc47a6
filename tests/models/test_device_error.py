"""What is a device's failure, and what is not."""

from __future__ import annotations

import pytest

from hybridgen.errors import DeviceLost, HybridGenError, InternalError, OutOfDeviceMemory
from hybridgen.models.device_error import device_loss


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with …"),
        RuntimeError("CUDA error: unspecified launch failure"),
        InternalError("cuStreamSynchronize failed", value="CUDA_ERROR_ILLEGAL_ADDRESS"),
        DeviceLost("the device failed"),
    ],
)
def test_what_a_device_does_not_recover_from_is_told_by_its_text(error: Exception) -> None:
    lost = device_loss(error)
    assert isinstance(lost, DeviceLost)
    assert "\n" not in str(lost)


@pytest.mark.parametrize(
    "error",
    [
        OutOfDeviceMemory("CUDA error: out of memory"),
        InternalError("a row was finished without a reason"),
        ZeroDivisionError("by zero"),
    ],
)
def test_other_errors_are_not(error: HybridGenError) -> None:
    assert device_loss(error) is None
