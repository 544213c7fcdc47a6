"""A real device that fails in the first gpu process: ``faulty_workers`` calls ``arm`` there.

``device-full``: no memory beyond what is there at the start, until two pieces have failed for it.
``device-lost``: after ``NUM_GOOD_STEPS`` steps a kernel writes far outside of any memory; the time
(CLOCK_MONOTONIC, seconds) is written to the file that ``FAULTY_NOTE`` names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from hybridgen.errors import OutOfDeviceMemory
from hybridgen.models.cuda.prefill import PrefillPiece
from hybridgen.workers.device_ring import DeviceRing

NUM_GOOD_STEPS = 300
NUM_FAILING_PIECES = 2


def arm(faulty: str) -> None:
    """Spoil the loop of this process."""
    {"device-full": _fill, "device-lost": _lose}[faulty]()


def _fill() -> None:
    introduce, advance = DeviceRing.introduce, PrefillPiece.advance
    num_failed = 0

    def introduce_and_fill(self: DeviceRing) -> None:
        introduce(self)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        _, total_bytes = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total_bytes)

    def counting_advance(self: PrefillPiece, num_layers: int = 1) -> bool:
        nonlocal num_failed
        try:
            return advance(self, num_layers)
        except OutOfDeviceMemory:
            num_failed += 1
            if num_failed == NUM_FAILING_PIECES:
                torch.cuda.set_per_process_memory_fraction(1.0)
            raise

    DeviceRing.introduce = introduce_and_fill  # type: ignore[method-assign]
    PrefillPiece.advance = counting_advance  # type: ignore[method-assign]


def _lose() -> None:
    from tests.gpu.stray_write import FAR, stray_write

    introduce, publish = DeviceRing.introduce, DeviceRing._publish
    num_steps = 0

    def introduce_and_compile(self: DeviceRing) -> None:
        stray_write(0)
        torch.cuda.synchronize()
        introduce(self)

    def publish_and_stray(self: Any, plan: Any) -> None:
        nonlocal num_steps
        publish(self, plan)
        num_steps += 1
        if num_steps == NUM_GOOD_STEPS:
            Path(os.environ["FAULTY_NOTE"]).write_text(repr(time.monotonic()), encoding="ascii")
            with torch.cuda.stream(self._engine.stream):
                stray_write(FAR)

    DeviceRing.introduce = introduce_and_compile  # type: ignore[method-assign]
    DeviceRing._publish = publish_and_stray  # type: ignore[method-assign]
