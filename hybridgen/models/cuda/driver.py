"""The few driver calls that torch has no name for.

The binding (package cuda-bindings, extra ``cuda``) is there only where a device is; it is untyped,
and is imported when the first call is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from hybridgen.errors import ConfigError, InternalError, OutOfDeviceMemory

_WAIT_UNTIL_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ, in cyclic order
_WRITE_AFTER_ALL_BEFORE = 0  # CU_STREAM_WRITE_VALUE_DEFAULT: with a memory barrier before
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_REGISTER_FOR_DEVICE = 0x01 | 0x02  # CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP


@cache
def _binding() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ConfigError(
            f"the driver's Python binding cannot be loaded: {error}",
            value="device cuda",
            remedy="Install the extra: pip install 'hybridgen[cuda]'",
        ) from error


def _checked(name: str, answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if int(status) == _OUT_OF_MEMORY:
        raise OutOfDeviceMemory(f"{name} found no memory", value=str(status))
    if int(status) != 0:
        raise InternalError(f"{name} failed", value=str(status))
    return values[0] if values else None


def create_stream(priority: int = 0) -> int:
    """The handle of a stream that does not wait for the default stream."""
    driver = _binding()
    stream = _checked("cuStreamCreate", driver.cuStreamCreateWithPriority(_NON_BLOCKING, priority))
    return int(stream)


class HostRegion:
    """A piece of this process's memory that the device can read and write.

    Args:
        address: of its first byte, on a page.
        size_bytes: length.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        driver = _binding()
        flags = _REGISTER_FOR_DEVICE
        _checked("cuMemHostRegister", driver.cuMemHostRegister(address, size_bytes, flags))
        pointer = _checked(
            "cuMemHostGetDevicePointer", driver.cuMemHostGetDevicePointer(address, 0)
        )
        self.host_address = address
        self.device_address = int(pointer)

    def close(self) -> None:
        """Let go of the memory; nothing on the device may still use it."""
        _checked("cuMemHostUnregister", _binding().cuMemHostUnregister(self.host_address))


class DriverStream:
    """Operations on one stream, by its handle."""

    def __init__(self, handle: int) -> None:
        self._driver = _binding()
        self._stream = self._driver.CUstream(handle)

    def copy_to_host(self, host_address: int, device_address: int, num_bytes: int) -> None:
        """Device → registered host memory."""
        driver = self._driver
        status = driver.cuMemcpyDtoHAsync(host_address, device_address, num_bytes, self._stream)
        _checked("cuMemcpyDtoHAsync", status)

    def copy(self, target_address: int, source_address: int, num_bytes: int) -> None:
        """Device → device."""
        driver = self._driver
        status = driver.cuMemcpyDtoDAsync(target_address, source_address, num_bytes, self._stream)
        _checked("cuMemcpyDtoDAsync", status)

    def write_word(self, device_address: int, value: int) -> None:
        """Store a 64-bit word once everything before is done and visible."""
        driver, flags = self._driver, _WRITE_AFTER_ALL_BEFORE
        status = driver.cuStreamWriteValue64(self._stream, device_address, value, flags)
        _checked("cuStreamWriteValue64", status)

    def wait_words(self, device_addresses: Sequence[int], value: int) -> None:
        """Go on once each of these 64-bit words is at least ``value``, in cyclic order."""
        driver, flags = self._driver, _WAIT_UNTIL_AT_LEAST
        for address in device_addresses:
            status = driver.cuStreamWaitValue64(self._stream, address, value, flags)
            _checked("cuStreamWaitValue64", status)
