"""A device engine whose streams are threads: what is enqueued happens later, in order.

The arithmetic is the mock model's. Like a real device it publishes steps without waking anybody,
waits for the lanes' words by itself, and reads everything else from its own memory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from hybridgen.formats.mock_model import VOCAB_SIZE
from hybridgen.ipc import _native
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.models.mock import MockEngine
from hybridgen.scheduler.batch_row import SAMPLED_DTYPE
from hybridgen.scheduler.device_row import StateLayout

_CYCLE = 1 << 64


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

    def __init__(self, num_blocks: int, layout: StateLayout, max_in_flight: int = 2) -> None:
        self._mock = MockEngine(VOCAB_SIZE, num_blocks + 1)
        self.num_blocks = num_blocks
        self.block_size = self._mock.block_size
        self.vocab_size = VOCAB_SIZE
        self.max_in_flight = max_in_flight
        self.decoding = Stream()
        self.prefilling = Stream()
        self._layout = layout
        self._items = np.full(layout.num_items, num_blocks, np.int32)
        self._items[: layout.max_rows] = -1
        self._items[layout.origins : layout.tables] = np.arange(layout.max_rows)
        self._results = np.zeros(layout.max_rows, SAMPLED_DTYPE)
        self._logits = np.zeros((layout.max_rows, VOCAB_SIZE), np.float32)
        self._first = np.zeros((self.num_logits_slots, VOCAB_SIZE), np.float32)
        self._num_pieces = 0
        self._is_released = False
        self.num_waits_for_nothing = 0

    # --- DeviceEngine ---------------------------------------------------------------------------

    def connect(self, ring: LogitRing, sampled: SampledRing) -> StreamDevice:
        self._ring, self._sampled = ring, sampled
        return self

    def apply(self, indices: np.ndarray, values: np.ndarray) -> None:
        self.decoding.enqueue(lambda: self._items.put(indices, values))

    def take_results(self, step: int, num_rows: int) -> None:
        def take() -> None:
            raw = np.frombuffer(self._sampled.raw(step, num_rows), SAMPLED_DTYPE)
            self._results[:num_rows] = raw

        self.decoding.enqueue(take)

    def forward(self, num_rows: int) -> None:
        self.decoding.enqueue(lambda: self._forward(num_rows))

    def emit(self, step: int, num_decode: int, logits_slots: Sequence[int]) -> None:
        def copy() -> None:
            ring = self._ring
            rows = np.asarray(ring.logits(step)).reshape(ring.max_rows, -1)[:, :VOCAB_SIZE]
            rows[:num_decode] = self._logits[:num_decode]
            rows[num_decode : num_decode + len(logits_slots)] = self._first[list(logits_slots)]

        self.decoding.enqueue(copy)

    def prefill(self, ids: np.ndarray, start: int, blocks: np.ndarray, slot: int) -> Piece:
        self._num_pieces += 1
        return Piece(self, ids.copy(), start, blocks.copy(), slot)

    def has_room(self) -> bool:
        return self._num_pieces < 2

    def is_quiet(self) -> bool:
        return self.decoding.is_quiet() and self.prefilling.is_quiet()

    def close(self) -> None:
        for stream in (self.decoding, self.prefilling):
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
                while (self._sampled.done(step, lane) - step) % _CYCLE >= _CYCLE // 2:
                    time.sleep(0.0001)

        self.decoding.enqueue(wait)

    def poll(self) -> bool:
        return True

    def release(self) -> None:
        for step, lane in getattr(self, "_awaited", []):
            if self._sampled.done(step, lane) != step:
                self._sampled.release(step, lane)

    # --- inside ---------------------------------------------------------------------------------

    def _forward(self, num_rows: int) -> None:
        layout = self._layout
        positions = self._items[:num_rows].copy()
        assert (positions >= 0).all()
        origins = self._items[layout.origins : layout.origins + num_rows]
        chosen = self._results["token_id"][np.maximum(origins, 0)]
        ids = np.where(origins >= 0, np.maximum(chosen, 0), -1 - origins).astype(np.int32)
        origins[:] = np.arange(num_rows)
        tables = self._items[layout.tables :].reshape(layout.max_rows, -1)[:num_rows]
        self._mock.decode(ids, positions, tables.copy(), self._logits[:num_rows])
        self._items[:num_rows] += 1


class Piece:
    """Implements ``PrefillRun``, in two layers."""

    def __init__(
        self, device: StreamDevice, ids: np.ndarray, start: int, blocks: np.ndarray, slot: int
    ) -> None:
        self._device = device
        self._call = (ids, start, blocks, slot)
        self._num_layers_out = 0
        self._is_done = False

    def advance(self) -> bool:
        self._num_layers_out += 1
        if self._num_layers_out == 2:
            self._device.prefilling.enqueue(self._compute)
        return self._num_layers_out < 2

    def is_done(self) -> bool:
        return self._is_done

    def _compute(self) -> None:
        ids, start, blocks, slot = self._call
        device = self._device
        out = device._first[slot] if slot >= 0 else None
        device._mock.prefill(ids, start, blocks, out)
        device._num_pieces -= 1
        self._is_done = True
