"""Errors that a device does not recover from while the process lives."""

from __future__ import annotations

from hybridgen.errors import CapacityError, DeviceLost

#: How torch, and the driver's own names of its states, put it.
_SIGNS = ("CUDA error", "CUDA_ERROR_")


def device_loss(error: BaseException) -> DeviceLost | None:
    """The typed error, where ``error`` came from the device; None for anything else.

    After an illegal access, a failed launch or an uncorrectable memory error every later call fails
    with the same: only a new process gets a context that works. A device whose memory is full has
    not failed.
    """
    if isinstance(error, DeviceLost):
        return error
    said = str(error).partition("\n")[0]
    if isinstance(error, CapacityError) or not any(sign in said for sign in _SIGNS):
        return None
    return DeviceLost(
        "the device failed",
        value=said,
        remedy="The process is replaced; when it happens again, look at the driver's log (dmesg)",
    )
