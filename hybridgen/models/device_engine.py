"""What the gpu process needs from a model on a device that runs ahead of its host.

Every method but ``close`` only enqueues work and returns; nothing waits for the device, and no
value is read from it. One step is::

    engine.apply(changes)                                  what the host changed in the batch
    engine.set_parameters(words)                           how its rows are sampled
    hand_off.await_lanes(s - 1, lanes)                     the samplers of the step before
    engine.forward(num_decode, s, s - 1)                   the model, on their token ids
    engine.emit(s, num_decode, logits_slots, Output.CUTS)  what they need of the logits
    hand_off.publish(s)
    engine.copy_rows_aside(s, num_rows)                    the rest of the logits

in this order on one stream. With ``Output.TOKENS`` the device chooses the tokens itself, and the
next step neither awaits the lanes nor reads their answers. Pieces of prefill run beside it on
another stream.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.models.engine import IntArray


class Output(enum.Enum):
    """What of a step's logits is in the ring when the step is published."""

    ROWS = enum.auto()
    """Whole rows."""
    CUTS = enum.auto()
    """Their cuts; whole rows come later."""
    TOKENS = enum.auto()
    """Their cuts with tokens that the device chose, and already goes on with."""


class PromptChunk(NamedTuple):
    """Tokens of one prompt; several of different prompts are one piece of prefill.

    Attributes:
        ids: int32[n].
        start: position of the first.
        blocks: int32[w], KV blocks from position 0 on.
        logits_slot: buffer for the last token's logits; -1: they are not wanted.
    """

    ids: IntArray
    start: int
    blocks: IntArray
    logits_slot: int = -1

    @property
    def stop(self) -> int:
        """Position behind the last."""
        return self.start + len(self.ids)


class PrefillRun(Protocol):
    """One piece of prefill on its way through the device."""

    def advance(self, num_layers: int = 1) -> bool:
        """Enqueue the next layers; False when all of the piece is enqueued.

        Raises:
            OutOfDeviceMemory: nothing more of the piece will be enqueued, and ``is_done`` says
                when the device is through with the rest; its rows are to be computed again.
        """
        ...

    def is_done(self) -> bool:
        """Whether the device is through with it."""
        ...

    def device_ms(self) -> float:
        """Once done: from its first layer to its last, on the device."""
        ...


class HandOff(Protocol):
    """How device and samplers tell each other that a step is there."""

    name: str
    """For people: how the hand-off is made."""
    max_in_flight: int
    """Steps that may be enqueued before the samplers have answered the oldest."""
    has_cuts: bool
    """Whether a step may be published before its whole rows are there."""

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
        """Write items of the state vector: int64[k] distinct indices, int32[k] values."""
        ...

    def set_parameters(self, words: IntArray) -> None:
        """How to sample the rows of the steps to come: int32[num_rows, 8] (``row_parameters``)."""
        ...

    def forward(self, num_rows: int, step: int, answered: int) -> None:
        """Decode rows 0 … num_rows - 1 (at least one) at their positions.

        Args:
            num_rows: of the batch.
            step: its number.
            answered: step whose answers of the samplers are the tokens to decode; 0: the device
                chose them itself.

        Raises:
            OutOfDeviceMemory: its rows have to be computed again from their prompts on.
        """
        ...

    def emit(self, step: int, num_decode: int, logits_slots: Sequence[int], output: Output) -> None:
        """Put the logits of the decoded rows, then those of ``logits_slots``, into the ring.

        Raises:
            OutOfDeviceMemory: as ``forward``.
        """
        ...

    def copy_rows_aside(self, step: int, num_rows: int) -> None:
        """Copy the whole rows of an emitted step beside what follows, and mark them there.

        Those that samplers cannot do without may come first, each marked in its cut.
        """
        ...

    def prefill(self, chunks: Sequence[PromptChunk]) -> PrefillRun:
        """Begin a piece: at most ``max_chunk`` tokens, of different prompts.

        Raises:
            InternalError: it is empty or too large.
        """
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
