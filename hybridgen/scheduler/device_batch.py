"""The batch of a gpu process whose device runs ahead: step s + 1 is planned before s is known.

::

    piece = batch.next_prefill(n)     → enqueued → … the device is through → prefill_done(piece)
    plan = batch.plan_step(s + 1)     → enqueued behind the wait for the samplers of s
    batch.complete(s, ids, flags)     once the samplers of s have answered
    report = batch.take_report(s)

Between ``plan_step(s)`` and ``complete(s)`` step s is *in flight*; any number may be, one or two
in practice. A row whose text ended in step s is still in s + 1 when that was planned before: it
runs one wasted step, in which the samplers find it finished and write nothing. A row is reported
finished or retired only when no step in flight has it and no piece of its prefill is out, so its
blocks and its slot can be given away at once. Where the device has no memory left for a step or a
piece, that is taken back and its rows leave likewise, reported as overflowed.

A row with its newest token at position p decodes it into the blocks of positions 0 … p, and the
logits choose the token at p + 1. Without a block for p it is held out until it is granted more.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridgen.errors import InternalError
from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.messages import (
    BatchRow,
    ErrorInfo,
    GrantBlocks,
    JoinBatch,
    RetireSlot,
    RowProgress,
    SlotEvent,
    StepReport,
)
from hybridgen.scheduler.batch_row import Phase
from hybridgen.scheduler.device_arrays import DeviceArrays
from hybridgen.scheduler.device_row import DeviceChunk, DeviceRow, StateLayout, StepPlan
from hybridgen.scheduler.held_rows import HeldRows
from hybridgen.scheduler.order_check import check_grant, check_join
from hybridgen.scheduler.prefill_queue import PrefillQueue
from hybridgen.scheduler.row_events import Departure, RowEvents
from hybridgen.scheduler.row_parameters import NO_PARAMETERS, RowParameters
from hybridgen.scheduler.step_records import (
    become_plain,
    plain_rows,
    step_parameters,
    step_records,
)

_ENDS_ROW = int(RowFlag.FINISHED | RowFlag.STALE | RowFlag.NO_TOKEN)


class _InFlight(NamedTuple):
    step: int
    rows: list[DeviceRow]
    logits_slots: list[int]


class DeviceBatch:
    """Pure; every method is a plain call.

    Args:
        max_rows: rows in the batch at most.
        block_size: tokens per KV block.
        max_model_len: context length; sets the width of block tables.
        num_lanes: samplers that share the rows.
        num_logits_slots: device buffers for first logits: prompts that may be through, or in their
            last piece, and not yet be rows of a completed step.
        parameters_of: sampling parameters of the request in a slot, for a device that looks at
            logits itself; without it no row is cut or chosen there.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        block_size: int,
        max_model_len: int,
        num_lanes: int,
        num_logits_slots: int,
        parameters_of: Callable[[int], RowParameters] | None = None,
    ) -> None:
        self._max_rows = max_rows
        self._block_size = block_size
        self.layout = StateLayout(max_rows, -(-max_model_len // block_size))
        self._rows: dict[int, DeviceRow] = {}  # by slot
        self._queue = PrefillQueue()
        self._arrays = DeviceArrays(self.layout, block_size, max_model_len)
        self._ready: list[DeviceRow] = []  # prompts that are in; not yet in a step
        self._opening: list[tuple[DeviceRow, int]] = []  # first rows of the last step, and where
        self._held = HeldRows(self._arrays)
        self._in_flight: collections.deque[_InFlight] = collections.deque()
        self._last_ids = np.empty(0, np.int32)  # of the newest completed step
        self._free_slots = list(range(num_logits_slots))
        self._num_chunks_out = 0
        self._events = RowEvents()
        self._parameters_of = parameters_of or (lambda _slot: NO_PARAMETERS)
        self._had_first = True  # the last step had rows behind the decoded ones
        self._lanes = np.zeros(max_rows, np.uint32)
        self._num_live_lanes = 0
        self.set_live_lanes(range(num_lanes))

    def set_live_lanes(self, lanes: Sequence[int]) -> None:
        """Deal rows out over these samplers from the next step on.

        Raises:
            InternalError: no lane at all.
        """
        if len(lanes) == 0:
            raise InternalError("rows need at least one sampler", value=0, limit="≥ 1")
        self._lanes[:] = np.resize(np.asarray(lanes, np.uint32), self._max_rows)
        self._num_live_lanes = len(lanes)

    # --- orders -------------------------------------------------------------------------------

    def join(self, order: JoinBatch) -> None:
        """Take a sequence in. A repeat changes nothing but the detokenizer to wake.

        Another occupant, or other blocks, replace the row: who sent it knows nothing of the old.

        Raises:
            InternalError: its blocks do not hold its tokens, or the batch is full.
        """
        known = self._rows.get(order.slot)
        if known is not None:
            if known.epoch == order.epoch and known.blocks[: len(order.blocks)] == order.blocks:
                known.detokenizer = order.detokenizer
                if known.phase is Phase.RUNNING:
                    self._arrays.headers["detokenizer"][known.index] = order.detokenizer
                return
            self._leave(known, None)
        check_join(
            order,
            num_rows=len(self._rows),
            max_rows=self._max_rows,
            width=self.layout.width,
            block_size=self._block_size,
        )
        num_done = min(order.num_cached, order.num_tokens - 1)
        row = DeviceRow(
            *(order.slot, order.epoch, order.detokenizer, order.num_tokens),
            num_computed=num_done,
            num_done=num_done,
            num_covered=min(order.num_tokens, len(order.blocks) * self._block_size),
            blocks=list(order.blocks),
            parameters=self._parameters_of(order.slot),
        )
        self._rows[row.slot] = row
        self._queue.add(row)

    def grant(self, order: GrantBlocks) -> None:
        """Extend a row's block table; for a row that is not here, nothing.

        Raises:
            InternalError: a gap in the table, or more blocks than the context needs.
        """
        row = self._find(order.slot, order.epoch)
        if row is None:
            return
        check_grant(order, num_blocks=len(row.blocks), width=self.layout.width)
        row.blocks[order.first : order.first + len(order.blocks)] = order.blocks
        if row.phase is Phase.RUNNING:
            self._arrays.extend(row, order.first)
        elif row.phase is Phase.PREFILL:
            self._queue.cover(row, min(row.num_tokens, len(row.blocks) * self._block_size))

    def retire(self, order: RetireSlot) -> None:
        """Take a row out of all steps to come; reported when the last one that has it is over."""
        row = self._find(order.slot, order.epoch)
        if row is not None:
            self._leave(row, Departure.RETIRED)
        else:
            self._events.deny(SlotEvent(order.slot, order.epoch))

    # --- prefill ------------------------------------------------------------------------------

    def next_prefill(self, max_tokens: int) -> list[DeviceChunk]:
        """The next piece of prompts (see ``PrefillQueue``); empty when none could begin.

        Pieces must be computed in the order in which they are given out.
        """
        chunks = []
        for row, start, stop in self._queue.take(max_tokens, len(self._free_slots)):
            row.num_chunks_out += 1
            if stop == row.num_tokens:
                row.logits_slot = self._free_slots.pop()
            blocks = np.asarray(row.blocks, np.int32)
            chunks.append(DeviceChunk(*row.key, start, stop, blocks, row.logits_slot, row))
        self._num_chunks_out += len(chunks)
        return chunks

    def prefill_done(self, chunks: Sequence[DeviceChunk]) -> None:
        """The chunks' KV is in the blocks, and their logits in ``logits_slot``."""
        self._num_chunks_out -= len(chunks)
        for chunk in chunks:
            row = chunk.row
            row.num_chunks_out -= 1
            row.num_done = chunk.stop
            if row.phase is Phase.GONE:
                if chunk.is_last:
                    self._free_slots.append(chunk.logits_slot)
            elif chunk.is_last:
                row.phase = Phase.FIRST
                self._ready.append(row)
                self._events.prefilled.append(SlotEvent(row.slot, row.epoch))
            else:
                self._events.advanced.append(RowProgress(row.slot, row.epoch, chunk.stop))
        self._release_leavers()

    def prefill_failed(self, chunks: Sequence[DeviceChunk], error: ErrorInfo) -> None:
        """There was no memory for a piece, and what was enqueued of it is over: its rows leave."""
        self._num_chunks_out -= len(chunks)
        for chunk in chunks:
            chunk.row.num_chunks_out -= 1
            if chunk.is_last:
                self._free_slots.append(chunk.logits_slot)
        self._overflow([chunk.row for chunk in chunks], error)

    # --- steps --------------------------------------------------------------------------------

    def plan_step(self, step: int, *, wants_device: bool = False) -> StepPlan | None:
        """What the next step does; None, and nothing happens, when no row could be in it.

        Args:
            step: its number, one above that of the step before.
            wants_device: let the device choose the tokens, where the parameters of all rows allow.
        """
        self._run_opened()
        self._held.resume()
        self._hold_short_of_blocks()
        arrays, first = self._arrays, self._ready
        num_decode = len(arrays.rows)
        num_rows = num_decode + len(first)
        if num_rows == 0:
            return None
        self._ready = []
        indices, values = arrays.take_writes()
        is_on_device = wants_device and bool(plain_rows(arrays, first).all())
        plan = StepPlan(
            step=step,
            num_decode=num_decode,
            records=step_records(arrays, first, self._lanes, is_on_device=is_on_device),
            indices=indices,
            values=values,
            logits_slots=[row.logits_slot for row in first],
            lanes=self._lanes[: min(num_rows, self._num_live_lanes)].tolist(),
            parameters=self._parameters(step, first),
            is_on_device=is_on_device,
        )
        arrays.advance()
        self._opening = [(row, num_decode + offset) for offset, row in enumerate(first)]
        self._in_flight.append(_InFlight(step, [*arrays.rows, *first], plan.logits_slots))
        return plan

    def complete(
        self, step: int, token_ids: NDArray[np.integer], flags: NDArray[np.integer]
    ) -> None:
        """Take the samplers' answers to the oldest step in flight, one for each of its rows.

        Raises:
            InternalError: another step, or another number of results than rows.
        """
        if not self._in_flight or self._in_flight[0].step != step:
            raise InternalError("this step is not the oldest in flight", value=step)
        flight = self._in_flight[0]
        if len(token_ids) != len(flight.rows):
            raise InternalError(
                "a step has another number of results",
                value=len(token_ids),
                limit=len(flight.rows),
            )
        self._in_flight.popleft()
        self._last_ids = token_ids.astype(np.int32)
        self._free_slots += flight.logits_slots
        self._held.tell(flight.rows, token_ids, [later.rows for later in self._in_flight])
        ends = (flags & _ENDS_ROW) != 0
        if ends.any():
            for index in np.flatnonzero(ends):
                row = flight.rows[index]
                if row.phase is not Phase.GONE:
                    self._leave(row, Departure.FINISHED)
        self._release_leavers()

    def give_back(self, error: ErrorInfo) -> None:
        """There was no memory for the step planned last: it never was, and its rows leave."""
        flight = self._in_flight.pop()
        self._free_slots += flight.logits_slots
        self._opening = []
        self._overflow(flight.rows, error)
        self._arrays.distrust()

    def take_report(self, step: int) -> StepReport | None:
        """What happened since the last report, if anything."""
        return self._events.take_report(step)

    # --- state --------------------------------------------------------------------------------

    def rows(self) -> list[BatchRow]:
        """All rows, for WorkerAttached. Starving ones will be reported again."""
        self._arrays.is_told[:] = False
        return [
            BatchRow(row.slot, row.epoch, self._num_computed(row), list(row.blocks))
            for row in self._rows.values()
        ]

    @property
    def num_running(self) -> int:
        """Rows that the next step would decode."""
        return len(self._arrays.rows) + len(self._opening)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens that are in no piece yet."""
        return self._queue.num_tokens

    @property
    def is_idle(self) -> bool:
        """Whether nothing can happen before an order comes."""
        is_waiting = self._arrays.rows or self._queue or self._ready or self._opening
        is_busy = self._in_flight or self._num_chunks_out
        return not (is_waiting or is_busy or self._held.can_any_resume)

    # --- inside -------------------------------------------------------------------------------

    def _find(self, slot: int, epoch: int) -> DeviceRow | None:
        row = self._rows.get(slot)
        return row if row is not None and row.epoch == epoch else None

    def _parameters(self, step: int, first: list[DeviceRow]) -> NDArray[np.int32] | None:
        """Of all rows, if they are not those of the step before."""
        arrays = self._arrays
        if not (arrays.is_changed or first or self._had_first or become_plain(arrays)):
            return None
        arrays.is_changed, self._had_first = False, bool(first)
        return step_parameters(arrays, first, step)

    def _run_opened(self) -> None:
        """Rows whose first token the last step chooses are decoded from now on."""
        for row, index in self._opening:
            if row.phase is Phase.FIRST:
                self._arrays.append(row, row.num_tokens, index)
        self._opening = []

    def _hold_short_of_blocks(self) -> None:
        """Name rows that run short, and hold out those that have run out."""
        arrays, n = self._arrays, len(self._arrays.rows)
        if n == 0:
            return
        slack = arrays.room[:n] - arrays.positions[:n] - 1
        is_short = (slack < self._block_size) & ~arrays.is_told[:n]
        if is_short.any():
            for index in np.flatnonzero(is_short):
                row, position = arrays.rows[index], int(arrays.positions[index])
                self._events.starving.append(RowProgress(row.slot, row.epoch, position))
            arrays.is_told[:n] |= is_short
        if slack.min() < 0:
            last_ids = None if self._in_flight else self._last_ids
            for index in np.flatnonzero(slack < 0)[::-1]:
                self._held.hold(arrays.rows[index], last_ids)

    def _leave(self, row: DeviceRow, why: Departure | None) -> None:
        if row.phase is Phase.RUNNING:
            self._arrays.remove(row)
        elif row.phase is Phase.HELD:
            self._held.discard(row)
        elif row in self._ready:
            self._ready.remove(row)
            self._free_slots.append(row.logits_slot)
        self._queue.discard(row)
        row.phase = Phase.GONE
        if self._rows.get(row.slot) is row:
            del self._rows[row.slot]
        if why is not None:
            last_step = self._in_flight[-1].step if self._in_flight else 0
            self._events.leave(row, why, last_step)
            self._release_leavers()

    def _overflow(self, rows: Sequence[DeviceRow], error: ErrorInfo) -> None:
        self._events.memory_error = error
        for row in rows:
            if row.phase is not Phase.GONE:
                self._leave(row, Departure.OVERFLOWED)
        self._release_leavers()

    def _release_leavers(self) -> None:
        self._events.release(self._in_flight[0].step if self._in_flight else None)

    def _num_computed(self, row: DeviceRow) -> int:
        if row.phase is Phase.RUNNING:
            return int(self._arrays.positions[row.index])
        return row.position if row.phase is Phase.HELD else row.num_done
