"""How a CUDA device and the samplers tell each other that a step is there.

Two ways, of which one is chosen at the start by trying it:

- *stream memory operations*: the device stores ``ready`` and ``latest`` itself and waits for the
  lanes' ``done`` words itself. The host enqueues a step ahead; nothing of it stands between.
- *host waits*, where the driver refuses those: an event behind the step, which the host looks at
  until it is reached, then publishes; and the next step is enqueued once the samplers answered.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Sequence

import torch

from hybridgen.errors import InternalError
from hybridgen.ipc.header import Memory
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.models.cuda.driver import DriverStream, HostRegion
from hybridgen.models.cuda.streams import Mark
from hybridgen.models.device_engine import HandOff

logger = logging.getLogger(__name__)

#: The operations that are tried at the start take microseconds where they work.
TRIAL_LIMIT_S = 2.0


class RingRegions:
    """Both segments of a ring, registered with the driver."""

    def __init__(self, ring: LogitRing, sampled: SampledRing) -> None:
        self.ring = ring
        self.sampled = sampled
        self.logits_region = HostRegion(_address(ring.buf), len(ring.buf))
        self.sampled_region = HostRegion(_address(sampled.buf), len(sampled.buf))

    def close(self) -> None:
        """Unregister; the device must be idle."""
        self.logits_region.close()
        self.sampled_region.close()


class StreamHandOff:
    """By stream memory operations."""

    name = "stream memory operations"
    max_in_flight = 2
    has_cuts = True

    def __init__(self, regions: RingRegions, stream: DriverStream) -> None:
        self._regions = regions
        self._stream = stream
        self._awaited: list[tuple[int, int]] = []  # (step, lane) of the newest waits

    def publish(self, step: int) -> None:
        """See ``HandOff``."""
        ring, base = self._regions.ring, self._regions.logits_region.device_address
        self._stream.write_word(base + ring.ready_offset(step), step)
        self._stream.write_word(base + ring.latest_offset, step)

    def await_lanes(self, step: int, lanes: Sequence[int]) -> None:
        """See ``HandOff``."""
        base = self._regions.sampled_region.device_address
        offset_of = self._regions.sampled.lane_offset
        self._stream.wait_words([base + offset_of(step, lane) for lane in lanes], step)
        self._awaited = [*self._awaited, *((step, lane) for lane in lanes)][-2 * len(lanes) :]

    def poll(self) -> bool:
        """Nothing is left to the host."""
        return True

    def release(self) -> None:
        """See ``HandOff``."""
        sampled = self._regions.sampled
        for step, lane in self._awaited:
            if sampled.done(step, lane) != step:
                sampled.release(step, lane)

    def close(self) -> None:
        """See ``HandOff``."""
        self._regions.close()


class HostHandOff:
    """By events and host waits."""

    name = "host waits"
    max_in_flight = 1
    has_cuts = False

    def __init__(self, regions: RingRegions, stream: torch.cuda.Stream) -> None:
        self._regions = regions
        self._stream = stream
        self._step = 0  # enqueued and not published; 0: none
        self._event = Mark()

    def publish(self, step: int) -> None:
        """See ``HandOff``."""
        self._event.record(self._stream)
        self._step = step

    def await_lanes(self, step: int, lanes: Sequence[int]) -> None:
        """The host has waited for them already: that is what max_in_flight 1 means."""

    def poll(self) -> bool:
        """Publish the step once the device has reached the event."""
        if self._step and self._event.is_reached():
            self._regions.ring.publish(self._step)
            self._step = 0
        return self._step == 0

    def release(self) -> None:
        """The device waits for nobody."""

    def close(self) -> None:
        """See ``HandOff``."""
        self._regions.close()


def choose_hand_off(
    regions: RingRegions, stream: torch.cuda.Stream, wanted: str = "auto"
) -> HandOff:
    """The hand-off that the driver can do.

    Args:
        regions: of the ring.
        stream: that steps are computed on.
        wanted: ``auto`` tries; ``stream`` and ``host`` decide.

    Raises:
        InternalError: ``stream`` was asked for and does not work.
    """
    if wanted == "host":
        return HostHandOff(regions, stream)
    driver_stream = DriverStream(stream.cuda_stream)
    try:
        _try_memory_operations(regions, stream, driver_stream)
    except InternalError as error:
        if wanted == "stream":
            raise
        logger.warning("hand-off by host waits, since stream memory operations fail: %s", error)
        return HostHandOff(regions, stream)
    return StreamHandOff(regions, driver_stream)


def _try_memory_operations(
    regions: RingRegions, stream: torch.cuda.Stream, driver_stream: DriverStream
) -> None:
    """Write and wait for a word that nobody uses yet: the step record of step 0, lane 0."""
    ring, sampled = regions.ring, regions.sampled
    ready = ring.ready_offset(0)
    driver_stream.write_word(regions.logits_region.device_address + ready, 0)
    lane = regions.sampled_region.device_address + sampled.lane_offset(0, 0)
    driver_stream.wait_words([lane], sampled.done(0, 0))
    event = Mark()
    event.record(stream)
    until_s = time.monotonic() + TRIAL_LIMIT_S
    while not event.is_reached():
        if time.monotonic() > until_s:
            raise InternalError("a stream waits for a word that is there", limit=TRIAL_LIMIT_S)


def _address(buf: Memory) -> int:
    """Where a writable buffer lies in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buf))
