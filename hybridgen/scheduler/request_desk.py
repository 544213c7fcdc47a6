"""Where clients are served: submit, cancel, confirm, tokenize.

Every order may come twice: after a reconnect a client repeats whatever is still open, and gets
the present state of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hybridgen import fault
from hybridgen.clock import Clock
from hybridgen.config import SchedulerSection
from hybridgen.errors import HybridGenError, InvalidRequest, RestartBudgetSpent
from hybridgen.ipc.slot_table import SlotState
from hybridgen.messages import (
    AckFinished,
    CancelRequest,
    ErrorInfo,
    PromptTokenized,
    SubmitRequest,
    TokenizePrompt,
)
from hybridgen.request import FinishReason
from hybridgen.scheduler.admission import Admission
from hybridgen.scheduler.counters import Counters
from hybridgen.scheduler.drain import Drain
from hybridgen.scheduler.encoding import Encoding
from hybridgen.scheduler.gpu_batch import GpuBatch
from hybridgen.scheduler.outbox import Outbox
from hybridgen.scheduler.queues import RequestQueue
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.request_record import Ending, RequestRecord
from hybridgen.scheduler.retirement import Retirement
from hybridgen.scheduler.sampler_watch import SamplerWatch
from hybridgen.scheduler.slot_ledger import SlotLedger
from hybridgen.scheduler.texts import Texts
from hybridgen.trace_context import TraceContext

#: Clients get the seed as a number in JSON, which many read as a double.
MAX_DRAWN_SEED = 2**53 - 1


class RequestDesk:
    """Answers each client order, and gives slots to those that wait for one."""

    def __init__(
        self,
        *,
        limits: SchedulerSection,
        clock: Clock,
        draw_seed: Callable[[], int],
        book: RequestBook,
        ledger: SlotLedger,
        admission: Admission,
        batch: GpuBatch,
        encoding: Encoding,
        texts: Texts,
        retirement: Retirement,
        samplers: SamplerWatch,
        drain: Drain,
        backlog: RequestQueue[RequestRecord],
        outbox: Outbox,
        counters: Counters,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._draw_seed = draw_seed
        self._book = book
        self._ledger = ledger
        self._admission = admission
        self._batch = batch
        self._encoding = encoding
        self._texts = texts
        self._retirement = retirement
        self._samplers = samplers
        self._drain = drain
        self._backlog = backlog
        self._outbox = outbox
        self._counters = counters
        self._arrivals = itertools.count(ledger.num_slots)  # restored requests came before

    def submit(self, client_id: bytes, order: SubmitRequest) -> None:
        """A new request, or one that is repeated."""
        record = self._book.find(client_id, order.request_id)
        final = self._book.final(client_id, order.request_id)
        if record is not None:
            self._resubmit(record, order)
        elif final is not None:
            self._outbox.to_client(client_id, final)
        else:
            try:
                self._admit(client_id, order)
            except HybridGenError as error:
                self.refuse(client_id, order.request_id, error)

    def _admit(self, client_id: bytes, order: SubmitRequest) -> None:
        self._admission.check_ids(client_id, order.request_id)
        self._drain.refuse()
        if self._batch.is_lost:
            raise RestartBudgetSpent("the gpu process is gone", remedy="Restart the server")
        self._encoding.check()
        self._samplers.check()
        self._texts.check()
        num_live = len(self._book) - self._retirement.num_over
        self._admission.check(order, num_live)
        now_s = self._clock()
        timeout_s = order.timeout_s or self._limits.request_timeout_s or float("inf")
        seed = order.params.seed
        record = RequestRecord(
            client_id=client_id,
            request_id=order.request_id,
            params=order.params,
            seed=self._draw_seed() & MAX_DRAWN_SEED if seed is None else seed,
            priority=order.priority,
            arrival=next(self._arrivals),
            arrival_s=now_s,
            deadline_s=now_s + timeout_s,
            prompt=order.prompt,
            trace=TraceContext.parse(order.traceparent),
        )
        self._book.add(record)
        self._backlog.push(record)
        self._counters.accepted += not record.is_canary
        self._retirement.watch(record)

    def _resubmit(self, record: RequestRecord, order: SubmitRequest) -> None:
        record.trace = record.trace or TraceContext.parse(order.traceparent)
        if record.prompt is None and record.state is SlotState.ENCODING:
            # Its text was lost with the previous coscheduler.
            record.prompt = order.prompt
            record.params = order.params
            record.prompt_wait_s = float("inf")
            self._retirement.watch(record)
            self._encoding.start(record)
        if record.has_slot:
            self._texts.tell_client(record)  # also when it is over: its text may be wanted yet
        if record.final is not None:
            self._outbox.to_client(record.client_id, record.final)

    def cancel(self, client_id: bytes, order: CancelRequest) -> None:
        """End it in whatever phase it is; RequestFinished follows."""
        record = self._book.find(client_id, order.request_id)
        final = record.final if record else self._book.final(client_id, order.request_id)
        if final is not None:
            self._outbox.to_client(client_id, final)
        elif record is not None:
            self._retirement.cut(record, Ending(FinishReason.CANCELLED))
        else:
            error = InvalidRequest(
                "there is no such request to cancel",
                param="request_id",
                value=order.request_id.hex(),
                remedy="It may have ended long ago",
            )
            self._outbox.refuse(client_id, order.request_id, error)

    def acknowledge(self, client_id: bytes, order: AckFinished) -> None:
        """The client has everything; of an unknown request this says nothing."""
        record = self._book.find(client_id, order.request_id)
        if record is not None:
            self._retirement.acknowledge(record)

    def tokenize(self, client_id: bytes, order: TokenizePrompt) -> None:
        """Encode without serving."""
        try:
            self._admission.check_prompt(order.prompt)
            self._encoding.start_probe(client_id, order)
        except HybridGenError as error:
            answer = PromptTokenized(order.request_id, [], ErrorInfo.of(error))
            self._outbox.to_client(client_id, answer)

    def refuse(self, client_id: bytes, request_id: bytes, error: HybridGenError) -> None:
        """Answer an order that makes no request."""
        self._counters.rejected += 1
        self._outbox.refuse(client_id, request_id, error)

    def seat_backlog(self) -> None:
        """Give free slots to those that wait for one, in order."""
        while self._backlog and self._ledger.num_free > 0:
            record = self._backlog.pop()
            if record is not None:
                self._seat(record)

    def _seat(self, record: RequestRecord) -> None:
        try:
            self._encoding.assign(record)
            self._texts.assign(record)
        except HybridGenError as error:
            self._retirement.end(record, error)
            return
        record.seated_s = self._clock()
        self._ledger.fill(record)
        fault.point("coscheduler.admit")
        self._book.seat(record)
        self._texts.tell_client(record)
        self._texts.open(record)
        self._encoding.start(record)
