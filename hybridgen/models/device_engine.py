"""What the gpu process needs from a model on a device that runs ahead of its host.

Every method but ``close`` only enqueues work and returns; nothing waits for the device, and no
value is read from it. One step is::

    engine.apply(changes)                                  what the host changed in the batch
    hand_off.await_lanes(s - 1, lanes)                     the samplers of the step before
    engine.take_results(s - 1, num_rows)                   their token ids
    engine.forward(num_decode)                             the model, in one launch
    engine.emit(s, num_decode, logits_slots)               logits into the ring
    hand_off.publish(s)

in this order on one stream. Pieces of prefill run beside it on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.models.engine import IntArray


class PrefillRun(Protocol):
    """One piece of a prompt on its way through the device."""

    def advance(self) -> bool:
        """Enqueue the next layer; False when all of the piece is enqueued."""
        ...

    def is_done(self) -> bool:
        """Whether the device is through with it."""
        ...


class HandOff(Protocol):
    """How device and samplers tell each other that a step is there."""

    name: str
    """For people: how the hand-off is made."""
    max_in_flight: int
    """Steps that may be enqueued before the samplers have answered the oldest."""

    def publish(self, step: int) -> None:
        """Behind everything enqueued so far: tell the samplers that the step is in the ring."""
        ...

    def await_lanes(self, step: int, lanes: Sequence[int]) -> None:
        """Let what is enqueued from now on wait until these lanes are done with the step."""
        ...

    def poll(self) -> bool:
        """What the host has to do meanwhile; call while waiting. True: it need not be called."""
        ...

    def release(self) -> None:
        """Let the device wait for nobody any more; what it computes then is worthless."""
        ...

    def close(self) -> None:
        """Give the segments back to the system; the device must be idle."""
        ...


class DeviceEngine(Protocol):
    """A model on a device, with the state of a batch (``StateLayout``) beside it."""

    num_blocks: int
    block_size: int
    vocab_size: int
    num_logits_slots: int
    """Buffers for first logits."""
    max_chunk: int
    """Tokens of one piece of prefill at most."""

    def connect(self, ring: LogitRing, sampled: SampledRing) -> HandOff:
        """Open the ring to the device. Once.

        Raises:
            InternalError: the ring does not fit the engine.
        """
        ...

    def apply(self, indices: npt.NDArray[np.int64], values: IntArray) -> None:
        """Write items of the state vector."""
        ...

    def take_results(self, step: int, num_rows: int) -> None:
        """Read the samplers' answers to a step from the ring."""
        ...

    def forward(self, num_rows: int) -> None:
        """Decode rows 0 … num_rows - 1 (at least one) at their positions."""
        ...

    def emit(self, step: int, num_decode: int, logits_slots: Sequence[int]) -> None:
        """Copy the logits of the decoded rows, then those of ``logits_slots``, into the ring."""
        ...

    def prefill(self, ids: IntArray, start: int, blocks: IntArray, logits_slot: int) -> PrefillRun:
        """Begin a piece, as ``Engine.prefill``; logits_slot -1 for none."""
        ...

    def has_room(self) -> bool:
        """Whether another piece may begin."""
        ...

    def is_quiet(self) -> bool:
        """Whether everything enqueued was computed."""
        ...

    def close(self) -> None:
        """Wait for the device and give back its memory; the engine is not used again."""
        ...
