"""One sequence on a device that runs a step ahead of its host, and what is told the device."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridgen.scheduler.batch_row import Phase
from hybridgen.scheduler.row_parameters import NO_PARAMETERS, RowParameters

#: Chunks of a piece that do not begin their prompts; each reads its KV again on its own.
MAX_CONTINUED = 4


@dataclasses.dataclass(eq=False, slots=True)
class DeviceRow:
    """What the host knows of one row, apart from the arrays of DeviceBatch."""

    slot: int
    epoch: int
    detokenizer: int
    num_tokens: int  # prefill covers these
    num_computed: int  # leading tokens whose KV is in the blocks, or ordered to be
    num_done: int  # leading tokens whose KV is in the blocks
    num_covered: int  # of num_tokens, those that there are blocks for
    blocks: list[int]
    phase: Phase = Phase.PREFILL
    index: int = -1  # place in the arrays while RUNNING
    num_chunks_out: int = 0  # pieces of its prefill that the device has not finished
    logits_slot: int = -1  # device buffer of its first logits, from the last piece on
    position: int = 0  # while HELD: of the newest token
    last_id: int = -1  # while HELD: the newest token, -1 while the samplers have not said it
    origin: int = -1  # while HELD without last_id: its row in the step that tells it
    parameters: RowParameters = NO_PARAMETERS

    @property
    def key(self) -> tuple[int, int]:
        """What messages call it."""
        return self.slot, self.epoch


class DeviceChunk(NamedTuple):
    """Tokens ``start`` … ``stop - 1`` of a row, to be computed at these positions.

    A list of chunks of different rows is a *piece*: what the device computes at once.
    """

    slot: int
    epoch: int
    start: int
    stop: int
    blocks: NDArray[np.int32]  # (w,) block table from position 0
    logits_slot: int  # device buffer for the last position's logits; -1: they are not wanted
    row: DeviceRow

    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return self.stop - self.start

    @property
    def is_last(self) -> bool:
        """Whether the prompt is in afterwards."""
        return self.logits_slot >= 0


class StepPlan(NamedTuple):
    """One step, as it is enqueued.

    Attributes:
        step: its number.
        num_decode: rows 0 … num_decode - 1 are decoded; the others bring their first logits.
        records: hg_row records of all rows.
        indices: int64[k], items of the device's state to change before the step.
        values: int32[k], what to write there.
        logits_slots: where the logits of the rows behind num_decode lie.
        lanes: samplers that have a row.
        parameters: int32[num_rows, 8] of all rows (``row_parameters``); None: as before.
        is_on_device: the device chooses the tokens of all rows, and goes on with them.
    """

    step: int
    num_decode: int
    records: NDArray[np.void]
    indices: NDArray[np.int64]
    values: NDArray[np.int32]
    logits_slots: list[int]
    lanes: list[int]
    parameters: NDArray[np.int32] | None = None
    is_on_device: bool = False

    @property
    def num_rows(self) -> int:
        """Rows that samplers get."""
        return len(self.records)


class StateLayout(NamedTuple):
    """Where what stands in the device's state.

    It is one int32 vector::

        positions  max_rows      of the token to decode next; -1: the row is idle
        origins    max_rows      row of the step before whose token it is; below 0: -1 - token id
        tables     max_rows × w  KV blocks

    A step adds one to each position that is not -1 and sets each origin to the row itself, so in
    a steady batch nothing is written from outside.
    """

    max_rows: int
    width: int

    @property
    def num_items(self) -> int:
        """Length of the vector."""
        return self.max_rows * (2 + self.width)

    @property
    def origins(self) -> int:
        """First item of the origins."""
        return self.max_rows

    @property
    def tables(self) -> int:
        """First item of the tables."""
        return 2 * self.max_rows
