"""What workers report about slots. Repeats, and facts about former occupants, change nothing."""

from __future__ import annotations

from hybridgen.errors import HybridGenError, InvalidRequest
from hybridgen.ipc.slot_table import SlotState
from hybridgen.messages import (
    PromptEncoded,
    PromptRejected,
    ReaderLost,
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
        record = self._occupant(fact.slot, fact.epoch)
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
        record = self._occupant(fact.slot, fact.epoch)
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
        self._health.stepped()
        for event in fact.prefilled:
            record = self._row(event)
            if record is not None and record.state is SlotState.PREFILL:
                self._ledger.set_state(record, SlotState.RUNNING)
        for event in fact.starving:
            record = self._row(event)
            if record is not None:
                self._batch.starve(record)
        for event in fact.finished:
            self._finished(event)
        for event in fact.retired:
            self._retired(event)

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
        record.prompt = None
        record.tokens_at_death = -1
        if record.deaths:
            self._ledger.set_deaths(record, 0)

    def _occupant(self, slot: int, epoch: int) -> RequestRecord | None:
        record = self._book.occupant(slot, epoch)
        if record is None:
            self._counters.stale += 1
        return record

    def _row(self, event: SlotEvent) -> RequestRecord | None:
        record = self._occupant(event.slot, event.epoch)
        return record if record is not None and record.is_row else None
