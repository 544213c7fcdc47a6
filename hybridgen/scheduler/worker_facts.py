"""What workers report about slots. Repeats, and facts about former occupants, change nothing."""

from __future__ import annotations

from hybridgen.errors import HybridGenError, InvalidRequest
from hybridgen.ipc.slot_table import SlotState
from hybridgen.messages import (
    PromptEncoded,
    PromptRejected,
    ReaderLost,
    RowProgress,
    SlotEvent,
    StepReport,
    TextFinished,
)
from hybridgen.request import FinishReason
from hybridgen.scheduler.admission import Admission
from hybridgen.scheduler.counters import Counters
from hybridgen.scheduler.encoding import Encoding
from hybridgen.scheduler.gpu_batch import GpuBatch
from hybridgen.scheduler.health import Health
from hybridgen.scheduler.recovery import Recovery
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.request_record import Ending, RequestRecord
from hybridgen.scheduler.retirement import Retirement
from hybridgen.scheduler.slot_ledger import SlotLedger


class WorkerFacts:
    """One method per fact."""

    def __init__(
        self,
        *,
        book: RequestBook,
        ledger: SlotLedger,
        admission: Admission,
        batch: GpuBatch,
        encoding: Encoding,
        retirement: Retirement,
        recovery: Recovery,
        health: Health,
        counters: Counters,
    ) -> None:
        self._book = book
        self._ledger = ledger
        self._admission = admission
        self._batch = batch
        self._encoding = encoding
        self._retirement = retirement
        self._recovery = recovery
        self._health = health
        self._counters = counters

    def prompt_encoded(self, fact: PromptEncoded) -> None:
        """The ids are in the token row: the request may run."""
        record = self._encoded(fact)
        if record is None:
            return
        self._encoding.answered(record)
        if record.is_over:
            self._retirement.release(record)
        elif record.state is SlotState.ENCODING:
            try:
                self._accept_length(record, fact.num_tokens)
            except HybridGenError as error:
                self._retirement.end(record, error)
            else:
                self._batch.enqueue(record)

    def prompt_rejected(self, fact: PromptRejected) -> None:
        """The prompt cannot be encoded."""
        record = self._encoded(fact)
        if record is None:
            return
        self._encoding.answered(record)
        if record.is_over:
            self._retirement.release(record)
        elif record.state is SlotState.ENCODING:
            self._retirement.cut(record, Ending(FinishReason.ERROR, fact.error))

    def step_report(self, fact: StepReport) -> None:
        """Membership or need of rows changed."""
        if not self._batch.is_attached:
            return  # what it says of its rows when it attaches is newer
        if 0 < fact.incarnation < self._batch.incarnation:
            self._counters.stale += 1
            return
        self._health.stepped()
        for progress in fact.advanced:
            record = self._row(progress)
            if record is not None:
                self._batch.advanced(record, progress.num_tokens)
        for event in fact.prefilled:
            record = self._row(event)
            if record is not None and record.state is SlotState.PREFILL:
                self._batch.prefilled(record)
        for progress in fact.starving:
            record = self._row(progress)
            if record is not None:
                self._batch.starve(record, progress.num_tokens)
        for event in fact.finished:
            self._finished(event)
        for event in fact.retired:
            self._retired(event)
        if fact.overflowed:
            self._overflowed(fact)

    def text_finished(self, fact: TextFinished) -> None:
        """All text is with the client's socket."""
        record = self._occupant(fact.slot, fact.epoch)
        if record is not None:
            self._retirement.text_finished(record, fact)

    def reader_lost(self, fact: ReaderLost) -> None:
        """The client does not read: its request is cancelled."""
        record = self._occupant(fact.slot, fact.epoch)
        if record is not None:
            self._retirement.drop_reader(record, Ending(FinishReason.CANCELLED, fact.error))

    # --- inside -------------------------------------------------------------------------------

    def _encoded(self, fact: PromptEncoded | PromptRejected) -> RequestRecord | None:
        """Whose answer this is.

        A dead tokenizer's does not count: its successor has the same order, and will write the
        same ids again, so the slot must be kept until that one has answered.
        """
        record = self._occupant(fact.slot, fact.epoch)
        if record is not None and self._encoding.is_stale(record, fact):
            self._counters.stale += 1
            return None
        return record

    def _finished(self, event: SlotEvent) -> None:
        record = self._row(event)
        if record is None:
            self._batch.retired_foreign(event.slot, event.epoch)
            return
        self._batch.take_off(record)
        self._retirement.row_finished(record)

    def _retired(self, event: SlotEvent) -> None:
        record = self._row(event)
        if record is None:
            self._batch.retired_foreign(event.slot, event.epoch)
        elif record.is_retiring:
            self._batch.take_off(record)
            self._recovery.row_is_off(record)

    def _overflowed(self, fact: StepReport) -> None:
        records = []
        for event in fact.overflowed:
            record = self._row(event)
            if record is None:
                self._batch.retired_foreign(event.slot, event.epoch)
            elif not record.is_retiring:  # else that is confirmed for itself
                records.append(record)
        self._batch.overflow(records)
        for record in records:
            error = self._batch.overflows.charge(
                record, self._ledger.num_generated(record), fact.memory_error
            )
            if error is not None and not record.is_over:
                self._retirement.end(record, error)
            self._recovery.row_is_off(record)

    def _accept_length(self, record: RequestRecord, num_tokens: int) -> None:
        if num_tokens < 1:
            raise InvalidRequest(
                "the prompt is empty",
                param="prompt",
                value=num_tokens,
                limit="≥ 1 token",
                remedy="Give a prompt that has at least one token",
            )
        max_len = self._admission.max_len(
            num_tokens, record.params.max_tokens, self._batch.max_kv_tokens
        )
        self._ledger.set_lengths(record, num_tokens, max_len)
        self._counters.prompt_tokens += 0 if record.is_canary else num_tokens
        record.prompt = None

    def _occupant(self, slot: int, epoch: int) -> RequestRecord | None:
        record = self._book.occupant(slot, epoch)
        if record is None:
            self._counters.stale += 1
        return record

    def _row(self, event: SlotEvent | RowProgress) -> RequestRecord | None:
        record = self._occupant(event.slot, event.epoch)
        return record if record is not None and record.is_row else None
