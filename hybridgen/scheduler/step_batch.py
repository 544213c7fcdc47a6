"""The batch of the gpu process, kept up to date instead of built anew each step.

One step, as the gpu process runs it::

    chunk = batch.next_prefill()  → engine.prefill(…)  → batch.prefill_done(chunk)   any number
    rows = batch.decode_rows()    → engine.decode(…)   into logits rows 0 … n-1
    headers = batch.row_headers() → publish            rows n … : prompts that are in now
    results from the samplers     → batch.apply(results)
    report = batch.take_report(step)

The first of these calls begins the step: from then until ``apply`` (or ``row_headers``, when it
names no row) running rows keep their places, and whoever has to leave is dropped at the end.

A row with ``length`` known tokens decodes the one at position length-1, and the logits choose the
one at position ``length``; so it needs KV blocks for ``length`` tokens. A row without is held out
until it is granted more; it was named in ``StepReport.starving`` when one block was left.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridgen.errors import InternalError
from hybridgen.ipc.logit_ring import RowHeader
from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.messages import (
    BatchRow,
    GrantBlocks,
    JoinBatch,
    RetireSlot,
    RowProgress,
    SlotEvent,
    StepReport,
)
from hybridgen.scheduler.batch_row import HEADER_DTYPE, DecodeRows, GpuRow, Phase, PrefillChunk
from hybridgen.scheduler.decode_arrays import DecodeArrays
from hybridgen.scheduler.order_check import check_grant, check_join

_ENDS_ROW = int(RowFlag.FINISHED | RowFlag.STALE | RowFlag.NO_TOKEN)


class StepBatch:
    """Pure; every method is a plain call.

    Args:
        max_rows: rows in the batch at most (max_num_seqs).
        block_size: tokens per KV block.
        prefill_chunk: most tokens of one prefill chunk.
        max_model_len: context length; sets the width of block tables.
        num_lanes: samplers that share the rows.
    """

    def __init__(
        self, max_rows: int, block_size: int, prefill_chunk: int, max_model_len: int, num_lanes: int
    ) -> None:
        self._max_rows = max_rows
        self._block_size = block_size
        self._prefill_chunk = prefill_chunk
        self._width = -(-max_model_len // block_size)
        self._rows: dict[int, GpuRow] = {}  # by slot
        self._prefills: collections.deque[GpuRow] = collections.deque()
        self._arrays = DecodeArrays(max_rows, self._width, block_size)
        self._first: list[GpuRow] = []  # prompts that came in during this step
        self._num_frozen = -1  # running rows of the step under way; -1: between steps
        self._num_awaited = 0  # results that apply() must get
        self._leavers: list[GpuRow] = []  # retired during the step
        self._step_headers = np.zeros(max_rows, HEADER_DTYPE)
        self._lanes = np.zeros(max_rows, np.uint32)
        self._advanced: list[RowProgress] = []
        self._prefilled: list[SlotEvent] = []
        self._finished: list[SlotEvent] = []
        self._retired: list[SlotEvent] = []
        self._starving: list[RowProgress] = []
        self.set_live_lanes(range(num_lanes))

    def set_live_lanes(self, lanes: Sequence[int]) -> None:
        """Deal rows out over these samplers from the next step on.

        Raises:
            InternalError: no lane at all.
        """
        if len(lanes) == 0:
            raise InternalError("rows need at least one sampler", value=0, limit="≥ 1")
        self._lanes[:] = np.resize(np.asarray(lanes, np.uint32), self._max_rows)

    # --- orders -------------------------------------------------------------------------------

    def join(self, order: JoinBatch) -> None:
        """Take a sequence in. A repeat changes nothing but the detokenizer to wake.

        Another occupant, or other blocks, replace the row: who sent it knows nothing of the old.

        Raises:
            InternalError: its blocks do not hold its tokens, or the batch is full.
        """
        known = self._rows.get(order.slot)
        if known is not None and self._is_repeat(known, order):
            known.detokenizer = order.detokenizer
            if known.phase is Phase.RUNNING:
                self._arrays.headers["detokenizer"][known.index] = order.detokenizer
            return
        check_join(
            order,
            num_rows=len(self._rows) - (known is not None),
            max_rows=self._max_rows,
            width=self._width,
            block_size=self._block_size,
        )
        if known is not None:
            self._dismiss(known)
        row = GpuRow(
            slot=order.slot,
            epoch=order.epoch,
            detokenizer=order.detokenizer,
            num_tokens=order.num_tokens,
            num_computed=min(order.num_cached, order.num_tokens - 1),
            blocks=list(order.blocks),
        )
        self._rows[row.slot] = row
        self._queue_prefill(row)

    def grant(self, order: GrantBlocks) -> None:
        """Extend a row's block table; for a row that is not here, nothing.

        Raises:
            InternalError: a gap in the table, or more blocks than the context needs.
        """
        row = self._find(order.slot, order.epoch)
        if row is None or row.is_retired:
            return
        check_grant(order, num_blocks=len(row.blocks), width=self._width)
        row.blocks[order.first : order.first + len(order.blocks)] = order.blocks
        if row.phase is Phase.RUNNING:
            self._arrays.extend(row, order.first)
        elif row.phase is Phase.HELD and self._has_room(row):
            self._arrays.append(row, row.last_id, row.num_tokens)
        elif row.phase is Phase.PREFILL:
            self._queue_prefill(row)

    def retire(self, order: RetireSlot) -> None:
        """Take a row out, at once or when its step is over; reported in either case."""
        row = self._find(order.slot, order.epoch)
        if row is None:
            self._retired.append(SlotEvent(order.slot, order.epoch))
        elif not row.is_retired:
            if self._is_busy(row):
                row.is_retired = True
                self._leavers.append(row)
            else:
                self._leave(row)
                self._retired.append(SlotEvent(row.slot, row.epoch))

    # --- one step -----------------------------------------------------------------------------

    def next_prefill(self, max_tokens: int | None = None) -> PrefillChunk | None:
        """The next piece of a prompt, taking turns; None when all are in, or wait for blocks.

        Args:
            max_tokens: of the piece; prefill_chunk when None.
        """
        num_most = self._prefill_chunk if max_tokens is None else max_tokens
        while self._prefills:
            row = self._prefills.popleft()
            if row.phase is not Phase.PREFILL or row.is_retired:
                continue
            self._begin()
            start = row.num_computed
            stop = min(start + num_most, row.num_tokens, self._room(row))
            is_last = stop == row.num_tokens
            row.is_chunk_out = True
            return PrefillChunk(
                slot=row.slot,
                epoch=row.epoch,
                start=start,
                stop=stop,
                blocks=np.asarray(row.blocks, np.int32),
                logits_row=self._num_frozen + len(self._first) if is_last else -1,
                row=row,
            )
        return None

    def prefill_done(self, chunk: PrefillChunk) -> None:
        """The chunk's KV is in the blocks, and its logits in ``logits_row``."""
        row = chunk.row
        row.is_chunk_out = False
        if chunk.is_last:
            # Counted even if it was retired meanwhile: its logits row is taken.
            row.phase = Phase.FIRST
            self._first.append(row)
        row.num_computed = chunk.stop
        if row.is_retired:
            return
        if chunk.is_last:
            self._prefilled.append(SlotEvent(row.slot, row.epoch))
        else:
            self._advanced.append(RowProgress(row.slot, row.epoch, row.num_computed))
            self._queue_prefill(row)

    def decode_rows(self) -> DecodeRows:
        """All running rows that have room, ready for ``Engine.decode``."""
        self._begin()
        arrays, n = self._arrays, self._num_frozen
        return DecodeRows(arrays.ids[:n], arrays.positions[:n], arrays.tables[:n])

    def row_records(self) -> NDArray[np.void]:
        """The step's logits rows as ``hg_row`` records: running rows, then new ones. A view.

        An empty answer ends the step; otherwise ``apply`` must follow.
        """
        self._begin()
        n, arrays, headers = self._num_frozen, self._arrays, self._step_headers
        headers[:n] = arrays.headers[:n]
        np.add(arrays.positions[:n], 1, out=headers["position"][:n], casting="unsafe")
        for offset, row in enumerate(self._first):
            headers[n + offset] = (row.slot, 0, row.epoch, row.num_tokens, row.detokenizer, 0)
        self._num_awaited = n + len(self._first)
        headers["lane"][: self._num_awaited] = self._lanes[: self._num_awaited]
        if self._num_awaited == 0:
            self._end()
        return headers[: self._num_awaited]

    def row_headers(self) -> list[RowHeader]:
        """As ``row_records``, as a list for ``LogitRing.write_rows``."""
        records = self.row_records()
        columns = (records[name].tolist() for name in RowHeader._fields)
        return list(map(RowHeader._make, zip(*columns, strict=True)))

    def apply(self, results: Sequence[tuple[int, int]]) -> None:
        """Take the samplers' answers: (token id, RowFlag bits) for each row of ``row_headers``.

        Raises:
            InternalError: another number of results than rows.
        """
        flat = np.fromiter(itertools.chain.from_iterable(results), np.int64, 2 * len(results))
        self.apply_arrays(flat[::2], flat[1::2])

    def apply_arrays(self, token_ids: NDArray[np.integer], flags: NDArray[np.integer]) -> None:
        """As ``apply``, from arrays of n items each (fields of hg_sampled)."""
        if len(token_ids) != self._num_awaited or self._num_frozen < 0:
            raise InternalError(
                "a step has another number of results",
                value=len(token_ids),
                limit=self._num_awaited,
            )
        n, arrays = self._num_frozen, self._arrays
        arrays.ids[:n] = token_ids[:n]
        arrays.positions[:n] += 1
        ends = (flags & _ENDS_ROW) != 0
        leaving = [arrays.rows[index] for index in np.flatnonzero(ends[:n])] if ends.any() else []
        first, self._first = self._first, []
        leaving += [row for row, is_end in zip(first, ends[n:], strict=True) if is_end]
        for row in leaving:
            self._leave(row)
            self._finished.append(SlotEvent(row.slot, row.epoch))
        self._end()
        for row, token_id in zip(first, token_ids[n:], strict=True):
            if row.phase is Phase.FIRST:
                row.num_tokens += 1
                self._run(row, int(token_id))
        self._check_room()

    def take_report(self, step: int) -> StepReport | None:
        """What happened since the last report, if anything."""
        departures = (self._finished, self._retired)
        if not any((self._advanced, self._prefilled, *departures, self._starving)):
            return None
        report = StepReport(
            step=step,
            advanced=self._advanced,
            prefilled=self._prefilled,
            finished=self._finished,
            retired=self._retired,
            starving=self._starving,
        )
        self._advanced, self._prefilled, self._finished = [], [], []
        self._retired, self._starving = [], []
        return report

    # --- state --------------------------------------------------------------------------------

    def rows(self) -> list[BatchRow]:
        """All rows, for WorkerAttached. Starving ones will be reported again."""
        self._arrays.is_told[:] = False
        return [
            BatchRow(row.slot, row.epoch, self._num_computed(row), list(row.blocks))
            for row in self._rows.values()
        ]

    @property
    def num_rows(self) -> int:
        """Rows of any phase."""
        return len(self._rows)

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        return not (self._arrays.rows or self._prefills or self._first)

    # --- inside -------------------------------------------------------------------------------

    def _find(self, slot: int, epoch: int) -> GpuRow | None:
        row = self._rows.get(slot)
        return row if row is not None and row.epoch == epoch else None

    def _is_repeat(self, known: GpuRow, order: JoinBatch) -> bool:
        is_same = known.epoch == order.epoch and not known.is_retired
        return is_same and known.blocks[: len(order.blocks)] == order.blocks

    def _begin(self) -> None:
        if self._num_frozen < 0:
            self._num_frozen = len(self._arrays.rows)

    def _end(self) -> None:
        self._num_frozen = -1
        self._num_awaited = 0
        leavers = self._leavers
        self._leavers = [row for row in leavers if row.is_chunk_out]
        for row in leavers:
            if not row.is_chunk_out:
                self._leave(row)
                self._retired.append(SlotEvent(row.slot, row.epoch))

    def _is_busy(self, row: GpuRow) -> bool:
        is_decoding = row.phase is Phase.RUNNING and row.index < self._num_frozen
        return is_decoding or row.is_chunk_out or row.phase is Phase.FIRST

    def _dismiss(self, row: GpuRow) -> None:
        if self._is_busy(row):
            row.is_retired = True
            self._leavers.append(row)
        else:
            self._leave(row)

    def _leave(self, row: GpuRow) -> None:
        if row.phase is Phase.RUNNING:
            self._arrays.remove(row)
        row.phase = Phase.GONE
        if self._rows.get(row.slot) is row:
            del self._rows[row.slot]

    def _room(self, row: GpuRow) -> int:
        """Tokens that its blocks hold."""
        return len(row.blocks) * self._block_size

    def _has_room(self, row: GpuRow) -> bool:
        return row.num_tokens <= self._room(row)

    def _queue_prefill(self, row: GpuRow) -> None:
        """Let a prompt wait for its turn, unless it waits for one already, or for blocks."""
        if row in self._prefills or row.is_chunk_out or row.num_computed >= self._room(row):
            return
        self._prefills.append(row)

    def _run(self, row: GpuRow, token_id: int) -> None:
        row.last_id = token_id
        if self._has_room(row):
            self._arrays.append(row, token_id, row.num_tokens)
        else:
            row.phase = Phase.HELD
            self._starving.append(RowProgress(row.slot, row.epoch, row.num_tokens - 1))

    def _check_room(self) -> None:
        """Name rows that run short, and hold out those that have run out."""
        arrays, n = self._arrays, len(self._arrays.rows)
        slack = arrays.room[:n] - arrays.positions[:n] - 1
        is_short = (slack < self._block_size) & ~arrays.is_told[:n]
        if is_short.any():
            for index in np.flatnonzero(is_short):
                row, position = arrays.rows[index], int(arrays.positions[index])
                self._starving.append(RowProgress(row.slot, row.epoch, position))
            arrays.is_told[:n] |= is_short
        if n and slack.min() < 0:
            for index in np.flatnonzero(slack < 0)[::-1]:
                row = arrays.rows[index]
                row.last_id = int(arrays.ids[index])
                row.num_tokens = int(arrays.positions[index]) + 1
                arrays.remove(row)
                row.phase = Phase.HELD

    def _num_computed(self, row: GpuRow) -> int:
        if row.phase is Phase.RUNNING:
            return int(self._arrays.positions[row.index])
        return row.num_tokens - 1 if row.phase is Phase.HELD else row.num_computed
