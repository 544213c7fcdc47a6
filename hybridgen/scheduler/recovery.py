"""After a death: of a worker, or of the coscheduler itself.

Whatever a request needs to go on is in shared memory, so recovery is only a matter of telling the
replacement: a tokenizer its prompts, a detokenizer its texts, the gpu process its rows (which wait
again and are computed anew from their token ids). Samplers need nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from hybridgen.clock import Clock
from hybridgen.config import SchedulerSection
from hybridgen.errors import (
    ContextLengthExceeded,
    HybridGenError,
    RestartBudgetSpent,
)
from hybridgen.ipc.pulse import PROBE_SLOT
from hybridgen.ipc.slot_table import SlotState
from hybridgen.messages import AttachWorker, CheckLink, SlotEvent, WorkerAttached, WorkerDied
from hybridgen.request import FinishReason
from hybridgen.scheduler.admission import Admission
from hybridgen.scheduler.encoding import Encoding
from hybridgen.scheduler.gpu_batch import GPU, GpuBatch
from hybridgen.scheduler.outbox import Outbox
from hybridgen.scheduler.quarantine import TOKENS_UNKNOWN, Quarantine
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.request_record import Ending, RequestRecord
from hybridgen.scheduler.retirement import Retirement
from hybridgen.scheduler.sampler_watch import SamplerWatch
from hybridgen.scheduler.slot_ledger import SlotLedger
from hybridgen.scheduler.texts import Texts
from hybridgen.scheduler.tree_shape import TreeShape
from hybridgen.scheduler.worker_pool import PoolWorker, WorkerPool


class Recovery:
    """Attachments, deaths, and the rebuild from the slot table."""

    def __init__(
        self,
        *,
        shape: TreeShape,
        limits: SchedulerSection,
        clock: Clock,
        book: RequestBook,
        ledger: SlotLedger,
        admission: Admission,
        batch: GpuBatch,
        tokenizers: WorkerPool,
        detokenizers: WorkerPool,
        encoding: Encoding,
        texts: Texts,
        retirement: Retirement,
        quarantine: Quarantine,
        samplers: SamplerWatch,
        outbox: Outbox,
    ) -> None:
        self._shape = shape
        self._limits = limits
        self._clock = clock
        self._book = book
        self._ledger = ledger
        self._admission = admission
        self._batch = batch
        self._tokenizers = tokenizers
        self._detokenizers = detokenizers
        self._encoding = encoding
        self._texts = texts
        self._retirement = retirement
        self._quarantine = quarantine
        self._samplers = samplers
        self._outbox = outbox
        pools = (tokenizers, detokenizers)
        self._seats: dict[str, GpuBatch | PoolWorker] = {
            GPU: batch,
            **{worker.name: worker for pool in pools for worker in pool.workers},
        }
        self._on_death: dict[str, Callable[[WorkerDied], None]] = {
            "gpu": self._gpu_died,
            "sampler": self._sampler_died,
            "tokenizer": self._tokenizer_died,
            "detokenizer": self._detokenizer_died,
        }

    # --- the coscheduler itself ---------------------------------------------------------------

    def restore(self) -> int:
        """Rebuild all requests from the slot table and ask every worker to introduce itself.

        Returns:
            How many requests were found.
        """
        records = self._ledger.read_back()
        for record in records:
            self._book.add(record)
            self._book.seat(record)
            self._place(record)
            self._retirement.watch(record)
        for name in self._seats:
            self._call(name)
        return len(records)

    def _place(self, record: RequestRecord) -> None:
        state = record.state
        if record.is_over:
            self._retirement.num_over += 1
            record.ended_s = self._clock()
            self._ledger.set_state(record, SlotState.FINISHED)
        if record.deaths:
            record.tokens_at_death = TOKENS_UNKNOWN
        self._texts_of(record).records[record.slot] = record
        if state is SlotState.ENCODING:
            record.prompt_wait_s = self._clock() + self._limits.ack_timeout_s
            record.num_encodes = 1  # perhaps; the tokenizer answers, or attaches
            self._tokenizers[record.tokenizer].records[record.slot] = record
        elif state is SlotState.WAITING and not record.is_over:
            self._batch.waiting.push(record)
        else:
            self._batch.assume_row(record)

    def _texts_of(self, record: RequestRecord) -> PoolWorker:
        return self._detokenizers[record.detokenizer]

    # --- workers come -------------------------------------------------------------------------

    def attached(self, fact: WorkerAttached) -> None:
        """A worker is there: for the first time, anew, or because it was asked."""
        name = f"{fact.role}-{fact.index}"
        if not fact.answers and self._shape.incarnation > 1 and name in self._seats:
            # It may have been said to a predecessor, long ago.
            if not self._is_echo(self._seats[name], fact):
                self._call(name)
        elif fact.role == "gpu":
            self._gpu_attached(fact)
        elif fact.role == "tokenizer" and fact.index in self._tokenizers:
            worker = self._tokenizers[fact.index]
            if self._seat(worker, fact):
                self._release_all(self._encoding.lose(worker))
                self._encoding.resend(worker)
        elif fact.role == "detokenizer" and fact.index in self._detokenizers:
            worker = self._detokenizers[fact.index]
            if self._seat(worker, fact):
                self._texts.lose(worker)
                self._texts.resend(worker)
                self._release_all(list(worker.records.values()))

    def unreachable(self, name: str) -> None:
        """An order could not be delivered; what was lost is repeated once the worker attaches."""
        seat = self._seats.get(name)
        if seat is not None and seat.is_attached:
            seat.is_attached = False
            seat.call += 1

    def doubt(self, name: str) -> None:
        """Something that was said to or by that worker was lost: it has to say what it holds."""
        seat = self._seats.get(name)
        if seat is not None and seat.is_attached:
            self.unreachable(name)
            self._call(name)

    def ask_again(self) -> bool:
        """Ask workers that should be there to introduce themselves; whether any is missing."""
        seats = self._seats.items()
        absent = [name for name, seat in seats if not seat.is_attached and not seat.is_lost]
        for name in absent:
            self._call(name)
        return bool(absent)

    def check_links(self) -> None:
        """Let those who are there show whether anything was lost on the way to or from them."""
        for name, seat in self._seats.items():
            if seat.is_attached:
                self._outbox.to_worker(name, CheckLink())

    def _call(self, name: str) -> None:
        self._outbox.to_worker(name, AttachWorker(self._shape.incarnation, self._seats[name].call))

    def _seat(self, worker: PoolWorker, fact: WorkerAttached) -> bool:
        if self._is_echo(worker, fact):
            return False
        worker.incarnation = fact.incarnation
        worker.is_attached = True
        worker.is_lost = False
        return True

    def _is_echo(self, seat: GpuBatch | PoolWorker, fact: WorkerAttached) -> bool:
        """Whether ``fact`` says less than is known.

        It may come from a dead process, answer a dead coscheduler or an earlier call, or be older
        than orders that were sent meanwhile: an attached worker has nothing to add, as what gets
        lost on the way shows by itself (``doubt``). While one is called it gets no orders, so every
        answer to the present call tells of all before.
        """
        if fact.answers and (fact.answers, fact.call) != (self._shape.incarnation, seat.call):
            return True
        is_known = seat.is_attached and fact.incarnation == seat.incarnation
        return is_known or fact.incarnation < seat.incarnation

    def _gpu_attached(self, fact: WorkerAttached) -> None:
        batch = self._batch
        if self._is_echo(batch, fact):
            return
        if batch.is_attached:
            self._rows_lost(batch.lose())
        num_blocks_before = -1 if batch.pool is None else batch.pool.num_blocks
        missing = batch.attach(fact.incarnation, fact.num_blocks, fact.rows)
        if num_blocks_before != fact.num_blocks:
            self._fit_all()
        for record in missing:
            self.row_is_off(record)

    # --- workers go ---------------------------------------------------------------------------

    def died(self, fact: WorkerDied) -> None:
        """The supervisor saw a worker end; roles without a part in this need nothing."""
        handler = self._on_death.get(fact.role)
        if handler is not None:
            handler(fact)

    def row_is_off(self, record: RequestRecord) -> None:
        """The gpu process holds no such row (any more): what now?"""
        if record.is_over:
            self._retirement.release(record)
        elif self._ledger.finish(record).reason is not FinishReason.NONE:
            self._retirement.row_finished(record)
        else:
            self._fit(record)
            if not record.is_over:
                self._batch.enqueue(record)

    def _gpu_died(self, fact: WorkerDied) -> None:
        batch = self._batch
        if fact.incarnation >= batch.incarnation:
            self._rows_lost(batch.lose(), fact.served)
            batch.incarnation = fact.incarnation + 1  # nothing that the dead one said counts now
            batch.is_lost = batch.is_lost or fact.is_final
        if batch.is_lost:
            error = RestartBudgetSpent(
                "the gpu process kept dying and is not started again",
                value=fact.reason,
                remedy="See the log for why, then restart the server",
            )
            self._end_all(list(self._book), error)

    def _rows_lost(self, records: list[RequestRecord], served: SlotEvent | None = None) -> None:
        """A gpu process ended with these rows; ``served`` is the one it was busy with, if any."""
        suspects = records if served is None else self._occupants(served)
        for record, error in self._quarantine.rows([r for r in suspects if not r.is_over]):
            self._retirement.end(record, error)
        for record in records:
            self.row_is_off(record)

    def _sampler_died(self, fact: WorkerDied) -> None:
        self._samplers.died(is_final=fact.is_final)
        # Only one that found the row left undone by its predecessor names it: these are two deaths.
        for record in self._occupants(fact.served):
            error = self._quarantine.named("sampler", record, num_deaths=2)
            if error is not None:
                self._retirement.end(record, error)

    def _tokenizer_died(self, fact: WorkerDied) -> None:
        worker = self._leave(self._tokenizers, fact)
        if worker is None:
            return
        self._release_all(self._encoding.lose(worker))
        if fact.served is not None and fact.served.slot == PROBE_SLOT:
            self._encoding.probe_killed(fact.served.epoch)
        for record in self._occupants(fact.served):
            error = self._quarantine.named("tokenizer", record)
            if error is not None:
                self._retirement.end(record, error)
        if worker.is_lost:
            self._encoding.move_probes(worker)
            for record in list(worker.records.values()):
                self._move_prompt(worker, record)

    def _occupants(
        self, served: SlotEvent | None, *, and_over: bool = False
    ) -> list[RequestRecord]:
        """The request that a dead process was working for: one at most, unless it is over."""
        record = None if served is None else self._book.occupant(served.slot, served.epoch)
        return [] if record is None or (record.is_over and not and_over) else [record]

    def _move_prompt(self, worker: PoolWorker, record: RequestRecord) -> None:
        worker.records.pop(record.slot, None)
        try:
            self._encoding.assign(record)
        except HybridGenError as error:
            self._retirement.end(record, error)
            return
        self._ledger.set_owners(record)
        self._encoding.start(record)

    def _detokenizer_died(self, fact: WorkerDied) -> None:
        worker = self._leave(self._detokenizers, fact)
        if worker is None:
            return
        self._texts.lose(worker)
        # All its tokens may be there long ago, and even its client may have had the end of it.
        for record in self._occupants(fact.served, and_over=True):
            error = self._quarantine.named("detokenizer", record)
            if error is not None and record.final is None:
                self._retirement.drop_text(record, Ending.of(error))
            elif error is not None:
                self._retirement.drop_reader(record, Ending.of(error))
        if worker.is_lost:
            for record in list(worker.records.values()):
                self._move_text(worker, record)
        self._release_all(list(worker.records.values()))

    def _move_text(self, worker: PoolWorker, record: RequestRecord) -> None:
        try:
            self._texts.assign(record)
        except HybridGenError as error:
            self._retirement.drop_text(record, Ending.of(error))
            return
        worker.records.pop(record.slot, None)
        self._ledger.set_owners(record)
        self._texts.tell_client(record)
        self._texts.open(record)
        if record.is_cut:
            self._texts.close(record)
        if record.is_row and not record.is_over:
            # Its row rings the old detokenizer's bell; only a new JoinBatch names another.
            self._batch.preempt(record)

    def _leave(self, pool: WorkerPool, fact: WorkerDied) -> PoolWorker | None:
        if fact.index not in pool or fact.incarnation < pool[fact.index].incarnation:
            return None  # an older one; its replacement is here already
        worker = pool[fact.index]
        worker.incarnation = fact.incarnation + 1
        worker.is_attached = False
        worker.is_lost = worker.is_lost or fact.is_final
        return worker

    # --- lengths ------------------------------------------------------------------------------

    def _fit_all(self) -> None:
        for record in self._batch.waiting.items():
            self._fit(record)

    def _fit(self, record: RequestRecord) -> None:
        """End what does not fit into the KV memory that there is."""
        max_kv_tokens = self._batch.max_kv_tokens
        try:
            max_len = self._admission.max_len(
                record.prompt_len, record.params.max_tokens, max_kv_tokens
            )
            self._check_room(record, max_len)
        except ContextLengthExceeded as error:
            self._retirement.end(record, error)
            return
        if max_len < record.max_len:
            self._ledger.set_lengths(record, record.prompt_len, max_len)

    def _check_room(self, record: RequestRecord, max_len: int) -> None:
        num_tokens = record.prompt_len + self._ledger.num_generated(record)
        if num_tokens >= max_len:
            raise ContextLengthExceeded(
                "the KV memory became too small for a text that was under way",
                value=num_tokens,
                limit=max_len,
                remedy="Start the server with more KV blocks",
            )

    def _end_all(self, records: list[RequestRecord], error: HybridGenError) -> None:
        for record in records:
            self._retirement.end(record, error)

    def _release_all(self, records: list[RequestRecord]) -> None:
        for record in records:
            self._retirement.release(record)
