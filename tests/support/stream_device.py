"""A device engine whose streams are threads: what is enqueued happens later, in order.

The arithmetic is the mock model's. Like a real device it publishes steps without waking anybody,
waits for the lanes' words by itself, and reads everything else from its own memory.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np

from hybridgen.errors import OutOfDeviceMemory
from hybridgen.formats.mock_model import VOCAB_SIZE
from hybridgen.ipc import _native
from hybridgen.ipc.logit_ring import Cut, CutState, LogitRing, RowHeader
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.models.device_engine import Output, PromptChunk
from hybridgen.models.mock import MockEngine
from hybridgen.sampling import _native as sampling_native
from hybridgen.sampling import parameters
from hybridgen.scheduler.batch_row import SAMPLED_DTYPE
from hybridgen.scheduler.device_row import StateLayout
from hybridgen.scheduler.row_parameters import (
    BASE_WORD,
    PARAMETER_WORDS,
    RowWork,
    read_parameters,
)

_CYCLE = 1 << 64
#: Of a cut; few, so that some rows are not decided by theirs.
NUM_CANDIDATES = 6


class Stream:
    """Calls, one after the other, on a thread."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._num_enqueued = self._num_done = 0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.errors: list[Exception] = []

    def enqueue(self, call: Callable[[], None]) -> None:
        self._num_enqueued += 1
        self._calls.put(call)

    def is_quiet(self) -> bool:
        return self._num_done == self._num_enqueued

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:  # noqa: BLE001  # raised again by the test
                self.errors.append(error)
            self._num_done += 1


class StreamDevice:
    """Implements ``DeviceEngine``; also ``HandOff``."""

    name = "threads"
    num_logits_slots = 2
    max_chunk = 16

    def __init__(
        self,
        num_blocks: int,
        layout: StateLayout,
        max_in_flight: int = 2,
        slots: SlotTable | None = None,
        tokens: TokenStore | None = None,
    ) -> None:
        self._mock = MockEngine(VOCAB_SIZE, num_blocks + 1)
        self.num_blocks = num_blocks
        self.block_size = self._mock.block_size
        self.vocab_size = VOCAB_SIZE
        self.max_in_flight = max_in_flight
        # With sight of the requests it cuts rows and chooses tokens itself.
        self.has_cuts = slots is not None
        self._slots, self._token_store = slots, tokens
        self.copying = Stream()
        self.num_chosen = self.num_cut = self.num_urgent = self.num_copied = 0
        self._parameters = np.zeros((layout.max_rows, PARAMETER_WORDS), np.int32)
        self.decoding = Stream()
        self.prefilling = Stream()
        self._layout = layout
        self._items = np.full(layout.num_items, num_blocks, np.int32)
        self._items[: layout.max_rows] = -1
        self._items[layout.origins : layout.tables] = np.arange(layout.max_rows)
        self._results = np.zeros(layout.max_rows, SAMPLED_DTYPE)
        self._logits = np.zeros((2, layout.max_rows, VOCAB_SIZE), np.float32)
        self._first = np.zeros((self.num_logits_slots, VOCAB_SIZE), np.float32)
        self._num_pieces = 0
        # A device without memory: of its own accord for pieces of more tokens than this ...
        self.most_tokens = self.max_chunk
        self.num_failing_steps = 0  # ... and for the next so many steps that are decoded

    # --- DeviceEngine ---------------------------------------------------------------------------

    def connect(self, ring: LogitRing, sampled: SampledRing) -> StreamDevice:
        self._ring, self._sampled = ring, sampled
        return self

    def apply(self, indices: np.ndarray, values: np.ndarray) -> None:
        self.decoding.enqueue(lambda: self._items.put(indices, values))

    def set_parameters(self, words: np.ndarray) -> None:
        def put() -> None:
            self._parameters[: len(words)] = words

        self.decoding.enqueue(put)

    def forward(self, num_rows: int, step: int, answered: int) -> None:
        def run() -> None:
            if answered:
                raw = self._sampled.raw(answered, self._layout.max_rows)
                self._results[:] = np.frombuffer(raw, SAMPLED_DTYPE)
            self._forward(num_rows, step)

        if self.num_failing_steps:
            self.num_failing_steps -= 1
            self.decoding.enqueue(lambda: self._items[:num_rows].__iadd__(1))  # half of it was done
            raise shortage("a decode step")
        self.decoding.enqueue(run)

    def emit(self, step: int, num_decode: int, logits_slots: Sequence[int], output: Output) -> None:
        num_rows = num_decode + len(logits_slots)

        def put() -> None:
            rows = self._logits[step % 2]
            rows[num_decode:num_rows] = self._first[list(logits_slots)]
            if output is Output.ROWS:
                self._copy(step, num_rows)
                return
            for row in range(num_rows):
                self._cut(step, row, is_choosing=output is Output.TOKENS)

        self.decoding.enqueue(put)

    def copy_rows_aside(self, step: int, num_rows: int) -> None:
        def copy() -> None:
            rows = self._logits[step % 2][:num_rows].copy()
            for row in range(num_rows):  # those that want more than a cut, and no others
                if not self._parameters[row][7] & RowWork.CUT:
                    self._send(step, row)

            def put() -> None:
                self._copy(step, num_rows, rows)
                self.num_copied += 1
                _native.store(self._ring.buf, self._ring.whole_offset(step), step)

            self.copying.enqueue(put)

        self.decoding.enqueue(copy)

    def prefill(self, chunks: Sequence[PromptChunk]) -> Piece:
        self._num_pieces += 1
        copies = [
            chunk._replace(ids=chunk.ids.copy(), blocks=chunk.blocks.copy()) for chunk in chunks
        ]
        assert 0 < sum(len(chunk.ids) for chunk in copies) <= self.max_chunk
        return Piece(self, copies)

    def has_room(self) -> bool:
        return self._num_pieces < 2

    def is_quiet(self) -> bool:
        streams = (self.decoding, self.prefilling, self.copying)
        return all(stream.is_quiet() for stream in streams)

    def close(self) -> None:
        for stream in (self.decoding, self.prefilling, self.copying):
            stream.close()
            if stream.errors:
                raise stream.errors[0]

    # --- HandOff --------------------------------------------------------------------------------

    def publish(self, step: int) -> None:
        def store() -> None:
            _native.store(self._ring.buf, self._ring.ready_offset(step), step)
            _native.store(self._ring.buf, self._ring.latest_offset, step)

        self.decoding.enqueue(store)

    def await_lanes(self, step: int, lanes: Sequence[int]) -> None:
        self._awaited = [(step, lane) for lane in lanes]

        def wait() -> None:
            for lane in lanes:
                offset = self._sampled.lane_offset(step, lane)
                while ((done := self._sampled.done(step, lane)) - step) % _CYCLE >= _CYCLE // 2:
                    _native.wait(
                        self._sampled.buf, offset, done, 0, 100_000
                    )  # whoever stores wakes

        self.decoding.enqueue(wait)

    def poll(self) -> bool:
        return True

    def release(self) -> None:
        for step, lane in getattr(self, "_awaited", []):
            if self._sampled.done(step, lane) != step:
                self._sampled.release(step, lane)

    # --- inside ---------------------------------------------------------------------------------

    def _copy(self, step: int, num_rows: int, rows: np.ndarray | None = None) -> None:
        ring = self._ring
        out = np.asarray(ring.logits(step)).reshape(ring.max_rows, -1)[:, :VOCAB_SIZE]
        out[:num_rows] = self._logits[step % 2][:num_rows] if rows is None else rows

    def _send(self, step: int, row: int) -> None:
        ring = self._ring
        out = np.asarray(ring.logits(step)).reshape(ring.max_rows, -1)
        out[row, :VOCAB_SIZE] = self._logits[step % 2][row]
        _native.store(ring.buf, ring.urgent_offset(step, row), step)
        self.num_urgent += 1

    def _cut(self, step: int, row: int, *, is_choosing: bool) -> None:
        """As the kernels do, for the row whose parameters the host has set."""
        logits, ring = self._logits[step % 2][row], self._ring
        words = self._parameters[row]
        header = ring.rows(step)[row]
        assert words[BASE_WORD] + step == header.position, "the row has another's parameters"
        if not words[7] & RowWork.CUT:
            return
        assert self._slots is not None
        sampling = self._slots.parameters(header.slot)
        known = read_parameters(sampling, 0).words
        assert known[:BASE_WORD].tolist() == words[:BASE_WORD].tolist()
        scale = float(words[:1].view(np.float32)[0])
        temperature = parameters.unpack(sampling)[0].temperature
        total = sampling_native.total_weight(logits, temperature) if scale else 0.0
        order = np.sort(logits)[::-1]
        threshold = order[min(NUM_CANDIDATES, len(order)) - 1]
        ids = np.flatnonzero(logits >= threshold)
        state, token_id = CutState.CANDIDATES, 0
        self.num_cut += 1
        if is_choosing:
            state, token_id = CutState.TOKEN, self._choose(header, logits)
            self._results["token_id"][row] = token_id
            self.num_chosen += 1
        cut = Cut(
            state, token_id, float(order[0]), float(threshold), scale, total, step,
            logits[ids].tolist(), ids.tolist(),
        )  # fmt: skip
        ring.write_cut(step, row, cut)

    def _choose(self, header: RowHeader, logits: np.ndarray) -> int:
        assert self._slots is not None
        assert self._token_store is not None
        history = np.asarray(self._token_store.row(header.slot)[: header.position], np.int32)
        prompt_len = self._slots.load(header.slot, SlotWord.PROMPT_LEN)
        sampling = self._slots.parameters(header.slot)
        return sampling_native.sample_row(logits, sampling, history, prompt_len)[0]

    def _forward(self, num_rows: int, step: int) -> None:
        layout = self._layout
        positions = self._items[:num_rows].copy()
        assert (positions >= 0).all()
        origins = self._items[layout.origins : layout.origins + num_rows]
        chosen = self._results["token_id"][np.maximum(origins, 0)]
        ids = np.where(origins >= 0, np.maximum(chosen, 0), -1 - origins).astype(np.int32)
        origins[:] = np.arange(num_rows)
        tables = self._items[layout.tables :].reshape(layout.max_rows, -1)[:num_rows]
        self._mock.decode(ids, positions, tables.copy(), self._logits[step % 2][:num_rows])
        self._items[:num_rows] += 1


class Piece:
    """Implements ``PrefillRun``, in two layers."""

    def __init__(self, device: StreamDevice, chunks: list[PromptChunk]) -> None:
        self._device = device
        self._chunks = chunks
        self._num_layers_out = 0
        self._is_done = False

    def advance(self, num_layers: int = 1) -> bool:
        num_tokens = sum(len(chunk.ids) for chunk in self._chunks)
        if num_tokens > self._device.most_tokens:
            self._device.prefilling.enqueue(self._end)
            raise shortage(f"{num_tokens} tokens")
        was_out, self._num_layers_out = self._num_layers_out, self._num_layers_out + num_layers
        if was_out < 2 <= self._num_layers_out:
            self._device.prefilling.enqueue(self._compute)
        return self._num_layers_out < 2

    def is_done(self) -> bool:
        return self._is_done

    def device_ms(self) -> float:
        return 0.0

    def _compute(self) -> None:
        device = self._device
        for ids, start, blocks, slot in self._chunks:
            out = device._first[slot] if slot >= 0 else None
            device._mock.prefill(ids, start, blocks, out)
        self._end()

    def _end(self) -> None:
        self._device._num_pieces -= 1
        self._is_done = True


def shortage(work: str) -> OutOfDeviceMemory:
    return OutOfDeviceMemory(f"no memory for {work}", value="9 MiB", limit="1 MiB free")
