"""Prompts on their way through a device that decodes beside them: when, and how much at once.

Pieces of prompts are enqueued a few layers at a time, between looks at the samplers, and on a
stream of their own; nothing here waits for the device.
"""

from __future__ import annotations

import collections
import dataclasses
import logging

import numpy as np

from hybridgen import fault
from hybridgen.errors import OutOfDeviceMemory
from hybridgen.ipc.token_store import TokenStore, check_ids
from hybridgen.messages import ErrorInfo
from hybridgen.models.device_engine import DeviceEngine, PrefillRun, PromptChunk
from hybridgen.scheduler.device_batch import DeviceBatch
from hybridgen.scheduler.device_row import DeviceChunk
from hybridgen.scheduler.prefill_budget import PrefillBudget
from hybridgen.workers.lifecycle import WorkerContext

logger = logging.getLogger(__name__)

#: Layers enqueued between two looks at the samplers, about half a millisecond of the host …
LAYERS_AT_ONCE = 4
#: … and where the host itself publishes steps, which must not wait for it.
LAYERS_BETWEEN_POLLS = 1


@dataclasses.dataclass(slots=True)
class _Piece:
    chunks: list[DeviceChunk]
    run: PrefillRun
    num_tokens: int
    failure: ErrorInfo | None = None  # what was enqueued of it counts for nothing


class PrefillLane:
    """Pieces in the order in which the device computes them.

    ::

        lane.collect()              what the device is through with, into the batch
        lane.lets_step()            may a step be enqueued now?   then lane.step_begun()
        lane.begin()                the next piece, within the budget
        lane.advance()              some layers of it
        lane.step_done()            the samplers answered a step: budget for the next one
    """

    def __init__(
        self,
        context: WorkerContext,
        engine: DeviceEngine,
        batch: DeviceBatch,
        tokens: TokenStore,
        vocab_size: int,
    ) -> None:
        self._line = context.line
        self._engine = engine
        self._batch = batch
        self._tokens = tokens
        self._vocab_size = vocab_size
        self.budget = PrefillBudget(context.spec.config.device.prefill_budget_ms, engine.max_chunk)
        self._pieces: collections.deque[_Piece] = collections.deque()
        self._sending: PrefillRun | None = None  # not all of its layers are enqueued

    @property
    def is_sending(self) -> bool:
        """Whether there are layers to enqueue."""
        return self._sending is not None

    @property
    def is_out(self) -> bool:
        """Whether any piece is with the device."""
        return bool(self._pieces)

    def lets_step(self) -> bool:
        """Whether a decode step may be enqueued now; see ``PrefillBudget`` for when it is not."""
        self._look_at_batch()
        return not self._pieces or self.budget.lets_step()

    def step_begun(self) -> None:
        """A step was enqueued."""
        self.budget.step_begun()

    def step_done(self) -> None:
        """A step is over: there is budget for the next."""
        self.budget.step_done()

    def begin(self) -> None:
        """Begin the next piece, if there is one and room and budget for it."""
        is_short = any(piece.failure for piece in self._pieces)
        if self._sending is not None or is_short or not self._engine.has_room():
            return
        self._look_at_batch()
        most = self.budget.piece_size()
        chunks = self._batch.next_prefill(most) if most > 0 else []
        if not chunks:
            return
        fault.point("gpu.prefill")
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        self.budget.piece_begun(num_tokens)
        run = self._engine.prefill([self._prompt_chunk(chunk) for chunk in chunks])
        self._pieces.append(_Piece(chunks, run, num_tokens))
        self._sending = run

    def advance(self, *, is_host_free: bool = True) -> None:
        """Enqueue some layers of the newest piece; fewer where somebody waits for the host."""
        num_layers = LAYERS_AT_ONCE if is_host_free else LAYERS_BETWEEN_POLLS
        if self._sending is None:
            return
        try:
            is_sending = self._sending.advance(num_layers)
        except OutOfDeviceMemory as error:
            piece = self._pieces[-1]
            logger.warning("prefill of %d tokens is given back: %s", piece.num_tokens, str(error))
            piece.failure, is_sending = ErrorInfo.of(error), False
        if not is_sending:
            self._sending = None

    def collect(self) -> None:
        """Take in the pieces that the device is through with."""
        while self._pieces and self._pieces[0].run is not self._sending:
            piece = self._pieces[0]
            if not piece.run.is_done():
                return
            self._pieces.popleft()
            self._line.tick()
            if piece.failure is not None:
                self._line.add("memory_full", 1)
                self.budget.piece_failed(piece.num_tokens)
                self._batch.prefill_failed(piece.chunks, piece.failure)
                continue
            self._batch.prefill_done(piece.chunks)
            took_ms = piece.run.device_ms()
            self.budget.piece_done(piece.num_tokens, took_ms)
            self._line.add("prefill_tokens", piece.num_tokens)
            self._line.add("prefill_ns", round(took_ms * 1e6))

    def _look_at_batch(self) -> None:
        batch = self._batch
        self.budget.look(batch.num_running, batch.num_waiting_tokens)

    def _prompt_chunk(self, chunk: DeviceChunk) -> PromptChunk:
        ids = np.asarray(self._tokens.row(chunk.slot)[chunk.start : chunk.stop]).copy()
        check_ids(int(ids.min()), int(ids.max()), self._vocab_size)
        return PromptChunk(ids, chunk.start, chunk.blocks, chunk.logits_slot)
