"""One sequence in the gpu process's batch, and one piece of its prefill."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridgen.ipc.token_store import check_ids

#: One record of struct hg_row (ipc/layout.h), which the gpu process copies into the logit ring.
HEADER_DTYPE = np.dtype(
    [
        ("slot", np.uint32),
        ("lane", np.uint32),
        ("epoch", np.uint64),
        ("position", np.uint64),
        ("detokenizer", np.uint32),
        ("flags", np.uint32),
    ]
)

#: One record of struct hg_sampled (ipc/layout.h), which samplers answer with.
SAMPLED_DTYPE = np.dtype(
    [
        ("token_id", np.int32),
        ("flags", np.uint32),
        ("logprob", np.float32),
        ("reserved", np.uint32),
    ]
)


def check_results(results: NDArray[np.void], vocab_size: int) -> None:
    """Refuse answers that the next step would read memory by.

    Raises:
        IpcError: a row that goes on has an id outside the vocabulary.
    """
    ids = results["token_id"][results["flags"] == 0]
    if len(ids):
        check_ids(int(ids.min()), int(ids.max()), vocab_size)


class Phase(enum.Enum):
    """Where a row stands."""

    PREFILL = enum.auto()  # its prompt is being computed
    FIRST = enum.auto()  # the prompt is in; its first token is being chosen in this step
    RUNNING = enum.auto()  # one token a step
    HELD = enum.auto()  # would run, but has no block for its next position
    GONE = enum.auto()


@dataclasses.dataclass(eq=False, slots=True)
class GpuRow:
    """What the gpu process knows of one row, apart from the arrays of StepBatch."""

    slot: int
    epoch: int
    detokenizer: int
    num_tokens: int  # prefill covers these; while HELD, all that are known
    num_computed: int  # leading tokens whose KV is in the blocks
    blocks: list[int]
    phase: Phase = Phase.PREFILL
    last_id: int = -1  # the last known token, while HELD
    index: int = -1  # place in the arrays while RUNNING
    is_chunk_out: bool = False  # a piece of its prefill is being computed
    is_retired: bool = False  # leaves as soon as its step is over

    @property
    def key(self) -> tuple[int, int]:
        """What messages call it."""
        return self.slot, self.epoch


class PrefillChunk(NamedTuple):
    """Tokens ``start`` … ``stop - 1`` of a row, to be computed at these positions."""

    slot: int
    epoch: int
    start: int
    stop: int
    blocks: NDArray[np.int32]  # (w,) block table from position 0
    logits_row: int  # where the last position's logits go; -1: they are not wanted
    row: GpuRow

    @property
    def is_last(self) -> bool:
        """Whether the prompt is in afterwards."""
        return self.logits_row >= 0


class DecodeRows(NamedTuple):
    """What ``Engine.decode`` takes, for n running rows. Views: valid until ``apply``."""

    ids: NDArray[np.int32]  # (n,) last known token of each row
    positions: NDArray[np.int32]  # (n,) its absolute position
    block_tables: NDArray[np.int32]  # (n, w); entries past a row's own blocks are 0

    @property
    def num_rows(self) -> int:
        """Rows to decode."""
        return len(self.ids)
