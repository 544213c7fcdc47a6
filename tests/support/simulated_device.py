"""A device that runs behind its host: queues of work over a state vector and KV blocks.

Every number that a step reads comes from the state vector, from the blocks or from the results of
the step before, as on a real device, so whatever the host forgot to write shows as a wrong cell.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np

from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.scheduler.device_row import DeviceChunk, StateLayout, StepPlan

BLOCK_SIZE = 4


class Cell(NamedTuple):
    """What a KV block holds at one offset."""

    key: tuple[int, int]
    position: int
    token_id: int


class Text:
    """One request: its tokens, and where it ends."""

    def __init__(self, key: tuple[int, int], ids: list[int], num_final: int) -> None:
        self.key = key
        self.ids = ids
        self.num_prompt = len(ids)
        self.num_final = num_final
        self.is_cancelled = False
        self.is_over = False

    def sample(self, position: int, seen: list[int]) -> tuple[int, int]:
        """The sampler's answer to the row that chooses the token at ``position``."""
        if self.is_over:
            return -1, int(RowFlag.FINISHED | RowFlag.NO_TOKEN)
        assert position == len(self.ids), "a token would be chosen twice, or one left out"
        assert seen == self.ids, "the row was computed on another text"
        if self.is_cancelled:
            self.is_over = True
            return -1, int(RowFlag.FINISHED | RowFlag.NO_TOKEN)
        token_id = hash((self.key, tuple(self.ids[-3:]))) % 1000
        self.ids.append(token_id)
        self.is_over = len(self.ids) == self.num_final
        return token_id, int(RowFlag.FINISHED) if self.is_over else 0


class SimulatedDevice:
    """Decode queue, prefill queue, state, blocks."""

    def __init__(self, layout: StateLayout, num_blocks: int, window: int = 0) -> None:
        self.window = window  # positions that attention sees; 0: all
        self.layout = layout
        self.state = np.full(layout.num_items, -7, np.int32)
        self.state[: layout.max_rows] = -1
        self.state[layout.origins : layout.tables] = np.arange(layout.max_rows)
        self.blocks: list[list[Cell | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]
        self.texts: dict[tuple[int, int], Text] = {}
        self.writers: dict[tuple[int, int], list[tuple[int, int]]] = {}  # of blocks that it shares
        self.first_logits: dict[int, list[int]] = {}  # logits slot → the text that they follow
        self.steps: collections.deque[StepPlan] = collections.deque()
        self.pieces: collections.deque[list[DeviceChunk]] = collections.deque()
        self.results: list[tuple[int, int]] = []

    def run_piece(self) -> list[DeviceChunk]:
        """Compute the oldest piece of prefill."""
        piece = self.pieces.popleft()
        for chunk in piece:
            self._run_chunk(chunk)
        return piece

    def _run_chunk(self, chunk: DeviceChunk) -> None:
        key = chunk.row.key
        for position in range(chunk.start, chunk.stop):
            token_id = self.texts[key].ids[position]
            self.blocks[chunk.blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE] = Cell(
                key, position, token_id
            )
        if chunk.is_last:
            self.first_logits[chunk.logits_slot] = self._read(key, chunk.blocks, chunk.stop)

    def run_step(self) -> tuple[StepPlan, list[tuple[int, int]]]:
        """Compute the oldest step on the results of the one before, and sample its rows."""
        plan = self.steps.popleft()
        self.state[plan.indices] = plan.values
        bucket = 1
        while bucket < plan.num_decode:
            bucket *= 2
        bucket = min(bucket, self.layout.max_rows) if plan.num_decode else 0
        seen = [self._decode(index, plan) for index in range(bucket)]
        del seen[plan.num_decode :]
        seen += [self.first_logits.pop(slot) for slot in plan.logits_slots]
        results = []
        for record, ids in zip(plan.records, seen, strict=True):
            text = self.texts[int(record["slot"]), int(record["epoch"])]
            results.append(text.sample(int(record["position"]), ids))
        self.results = results
        return plan, results

    def _decode(self, index: int, plan: StepPlan) -> list[int]:
        """Advance one row as the kernels do; the ids that its attention saw."""
        layout = self.layout
        position, origin = int(self.state[index]), int(self.state[layout.origins + index])
        self.state[layout.origins + index] = index
        if index >= plan.num_decode:
            assert position == -1, "a row that should be idle is not"
            return []
        assert position >= 0, "a row of the step is idle"
        record = plan.records[index]
        assert int(record["position"]) == position + 1
        key = (int(record["slot"]), int(record["epoch"]))
        token_id = self.results[origin][0] if origin >= 0 else -1 - origin
        start = layout.tables + index * layout.width
        table = self.state[start : start + layout.width]
        self.blocks[table[position // BLOCK_SIZE]][position % BLOCK_SIZE] = Cell(
            key, position, token_id
        )
        self.state[index] += 1
        return self._read(key, table, position + 1)

    def _read(self, key: tuple[int, int], table: np.ndarray, num_tokens: int) -> list[int]:
        first = max(0, num_tokens - self.window) if self.window else 0
        ids = self.texts[key].ids[:first]
        for position in range(first, num_tokens):
            cell = self.blocks[table[position // BLOCK_SIZE]][position % BLOCK_SIZE]
            assert cell is not None
            writer = self.writer(key, position // BLOCK_SIZE)
            assert cell[:2] == (writer, position), "a block of this row was given to another"
            ids.append(cell.token_id)
        return ids

    def writer(self, key: tuple[int, int], index: int) -> tuple[int, int]:
        """Who has written a row's block: the row itself, or one that it shares its first with."""
        writers = self.writers.get(key, [])
        return writers[index] if index < len(writers) else key
