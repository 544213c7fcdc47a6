"""A whole set of segments in private memory, with a gpu process's side to play."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridgen.ipc import _native as _native_ipc
from hybridgen.ipc.logit_ring import Cut, LogitRing, RowHeader
from hybridgen.ipc.logprob_ring import LogprobRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import Finish, SlotTable, SlotWord, unpack_finish
from hybridgen.ipc.token_store import TokenStore
from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, parameters

VOCAB = 300
MAX_MODEL_LEN = 64
EOS = 2


class Segments:
    """Segments of 8 slots, 6 rows a step, 3 steps deep."""

    def __init__(self, num_lanes: int = 1, cut_capacity: int = 0, vocab_size: int = VOCAB) -> None:
        self.logits = LogitRing.in_memory(3, 6, vocab_size, num_lanes, cut_capacity)
        self.sampled = SampledRing.in_memory(3, 6, num_lanes)
        self.slots = SlotTable.in_memory(8, MAX_MODEL_LEN)
        self.tokens = TokenStore.in_memory(8, MAX_MODEL_LEN)
        self.logprobs = LogprobRing.in_memory(8, 4)

    def open_slot(
        self, slot: int, prompt: Sequence[int], params: SamplingParams, max_len: int = MAX_MODEL_LEN
    ) -> None:
        """Fill a slot as coscheduler and tokenizer would."""
        self.slots.clear_worker_lines(slot)
        self.slots.store(slot, SlotWord.EPOCH, slot + 100)
        self.slots.store(slot, SlotWord.PROMPT_LEN, len(prompt))
        self.slots.store(slot, SlotWord.MAX_LEN, max_len)
        self.tokens.write(slot, 0, prompt)
        area = self.slots.grammar(slot)
        parameters.pack(params, (EOS,), params.seed or 0, self.slots.parameters(slot), area)

    def row(self, slot: int, lane: int = 0, epoch: int | None = None) -> RowHeader:
        """The header of the slot's next token."""
        position = self.slots.load(slot, SlotWord.PROMPT_LEN) + self.generated(slot)
        return RowHeader(slot, lane, slot + 100 if epoch is None else epoch, position, slot)

    def publish(self, step: int, rows: Sequence[RowHeader], logits: np.ndarray) -> None:
        """Publish a step; ``logits`` has one row per header."""
        self.logits.write_rows(step, rows)
        self.fill(step, logits)
        self.logits.publish(step)

    def fill(self, step: int, logits: np.ndarray) -> None:
        """Write complete rows; whatever else there is of them must not matter."""
        ring = np.asarray(self.logits.logits(step)).reshape(6, -1)
        ring[:] = np.nan
        ring[: len(logits), : self.logits.vocab_size] = logits

    def publish_cuts(self, step: int, rows: Sequence[RowHeader], cuts: Sequence[Cut]) -> None:
        """Publish a step as a device does: its cuts are there, its complete rows are not."""
        self.logits.write_rows(step, rows)
        self.fill(step, np.empty((0, self.logits.vocab_size)))
        for row, cut in enumerate(cuts):
            self.logits.write_cut(step, row, cut)
        _native_ipc.store(self.logits.buf, self.logits.ready_offset(step), step)
        _native_ipc.store(self.logits.buf, self.logits.latest_offset, step)

    def send_urgent(self, step: int, rows: dict[int, np.ndarray]) -> None:
        """Some complete rows of a step, before the others."""
        ring = self.logits
        for row, logits in rows.items():
            np.asarray(ring.logits(step)).reshape(6, -1)[row, : ring.vocab_size] = logits
            _native_ipc.store(ring.buf, ring.urgent_offset(step, row), step)

    def complete(self, step: int, logits: np.ndarray) -> None:
        """The complete rows of a step, after its cuts."""
        self.fill(step, logits)
        _native_ipc.store(self.logits.buf, self.logits.whole_offset(step), step)

    def sample(self, step: int, lane: int = 0) -> tuple[int, int, int, int, int]:
        """One call of the kernel that leaves no row."""
        *report, _num_cut, num_left = self.sample_ready(step, lane)
        assert num_left == 0
        return tuple(report)

    def sample_ready(
        self, step: int, lane: int = 0, is_rest: bool = False, variant: int = 0
    ) -> tuple[int, int, int, int, int, int, int]:
        """One call of the kernel; its report but for the rows that came too early."""
        views = (self.logits, self.sampled, self.slots, self.tokens, self.logprobs)
        buffers = [view.buf for view in views]
        *report, self.num_early = _native.sample_step(*buffers, step, lane, is_rest, variant)
        return tuple(report)

    def generated(self, slot: int) -> int:
        return self.slots.load(slot, SlotWord.GENERATED)

    def finish(self, slot: int) -> Finish:
        return unpack_finish(self.slots.load(slot, SlotWord.FINISH))

    def output(self, slot: int) -> list[int]:
        prompt_len = self.slots.load(slot, SlotWord.PROMPT_LEN)
        return self.tokens.read(slot, prompt_len, prompt_len + self.generated(slot))

    def snapshot(self) -> tuple[bytes, ...]:
        """Everything a sampler may write."""
        views = (self.sampled, self.slots, self.tokens, self.logprobs)
        return tuple(bytes(view.buf) for view in views)


def peaked(*tops: int) -> np.ndarray:
    """Rows whose likeliest token is given, shape (len(tops), VOCAB)."""
    rows = np.random.default_rng(3).normal(0, 1, (len(tops), VOCAB)).astype(np.float32)
    rows[np.arange(len(tops)), list(tops)] = 50
    return rows
