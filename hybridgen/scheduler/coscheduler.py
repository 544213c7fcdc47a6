"""The brain of the tree, as a pure state machine.

Messages go in, addressed messages come out; it owns no socket and no thread, and its clock is
given. Every call leaves the state consistent, and every message costs O(1) or O(log n)::

    client  SubmitRequest ─ Admission ─ backlog ─┬─ slot: SlotLedger ─ EncodePrompt, OpenText
                                                 │
    PromptEncoded ─ WAITING ─ GpuBatch (blocks) ─┴─ JoinBatch ─ PREFILL ─ RUNNING
                       ↑          preempted │
                       └────────────────────┘
    finished · stopped · cancelled · deadline · error ─ Retirement ─ RequestFinished, slot free

The worker around it feeds frames in, sends what ``take_outbox`` returns, reports what it could
not deliver to ``handle_unreachable``, and calls ``tick`` when it asked for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from hybridgen.clock import Clock
from hybridgen.config import SchedulerSection
from hybridgen.errors import HybridGenError
from hybridgen.ipc.board import Role
from hybridgen.ipc.slot_table import SlotTable
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import (
    AckFinished,
    CancelRequest,
    DeathNoted,
    DrainTree,
    HealthReport,
    LinkChecked,
    ProbeEncoded,
    PromptEncoded,
    PromptRejected,
    QueryHealth,
    ReaderLost,
    StepReport,
    SubmitRequest,
    TextFinished,
    TokenizePrompt,
    WorkerAttached,
    WorkerDied,
)
from hybridgen.scheduler.admission import Admission
from hybridgen.scheduler.canary import Canary
from hybridgen.scheduler.clients import Clients
from hybridgen.scheduler.counters import Counters
from hybridgen.scheduler.drain import Drain
from hybridgen.scheduler.encoding import Encoding
from hybridgen.scheduler.gpu_batch import GpuBatch
from hybridgen.scheduler.health import Health
from hybridgen.scheduler.outbox import Addressed, Outbox, ToClient, ToWorker
from hybridgen.scheduler.prefix_sharing import PrefixSharing
from hybridgen.scheduler.quarantine import Quarantine
from hybridgen.scheduler.queues import RequestQueue
from hybridgen.scheduler.recovery import Recovery
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.request_desk import RequestDesk
from hybridgen.scheduler.request_record import FinishedRequest, RequestRecord
from hybridgen.scheduler.retirement import Retirement
from hybridgen.scheduler.sampler_watch import SamplerWatch
from hybridgen.scheduler.slot_ledger import SlotLedger
from hybridgen.scheduler.texts import Texts
from hybridgen.scheduler.tree_shape import TreeShape
from hybridgen.scheduler.worker_facts import WorkerFacts
from hybridgen.scheduler.worker_pool import WorkerPool

#: While there are requests, their clients and the workers are looked after this often.
WATCH_S = 1.0
#: All running rows are looked at for progress at most this often.
LOOK_S = 0.1
#: Absent workers are asked to introduce themselves this often.
ABSENT_S = 0.1
IDLE_S = 60.0


class Coscheduler:
    """Builds its parts and routes messages to them.

    Args:
        table: the slot table; call ``restore`` once before anything else.
        shape: what is served and by how many.
        limits: the configured limits.
        clock: seconds, CLOCK_MONOTONIC.
        draw_seed: 64 random bits; seeds of requests without one, and the first probe id.
        tokens: ids of prompts and texts; without them no KV blocks are shared.
    """

    def __init__(
        self,
        table: SlotTable,
        shape: TreeShape,
        limits: SchedulerSection,
        clock: Clock,
        draw_seed: Callable[[], int],
        *,
        tokens: TokenStore | None = None,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._draw_seed = draw_seed
        self.counters = Counters()
        self._outbox = Outbox()
        self._book = RequestBook(table.num_slots)
        self._backlog: RequestQueue[RequestRecord] = RequestQueue()
        self._ledger = SlotLedger(table, shape)
        self._admission = Admission(shape, limits, clock)
        self._tokenizers = WorkerPool("tokenizer", shape.num_tokenizers)
        self._detokenizers = WorkerPool("detokenizer", shape.num_detokenizers)
        self._encoding = Encoding(
            tokenizers=self._tokenizers,
            outbox=self._outbox,
            clock=clock,
            first_probe_id=draw_seed() >> 16,
        )
        self._texts = Texts(detokenizers=self._detokenizers, outbox=self._outbox)
        self._sharing = PrefixSharing(
            tokens if limits.enable_prefix_caching else None,
            shape.block_size,
            shape.least_shared_tokens,
        )
        self._build(shape)
        self._build_desks()
        self._route()
        self._next_watch_s, self._next_knock_s = clock(), math.inf
        self._next_look_s = -math.inf
        self._is_scheduled = True  # nothing has come in since

    def _build(self, shape: TreeShape) -> None:
        clock, book, ledger, outbox = self._clock, self._book, self._ledger, self._outbox
        quarantine = Quarantine(ledger, clock)
        self._samplers = SamplerWatch()
        self._batch = GpuBatch(
            shape=shape,
            max_num_seqs=self._limits.max_num_seqs,
            book=book,
            ledger=ledger,
            quarantine=quarantine,
            sharing=self._sharing,
            outbox=outbox,
            clock=clock,
        )
        self._retirement = Retirement(
            limits=self._limits,
            clock=clock,
            book=book,
            ledger=ledger,
            batch=self._batch,
            backlog=self._backlog,
            encoding=self._encoding,
            texts=self._texts,
            outbox=outbox,
            counters=self.counters,
            finish_rate=self._admission.finish_rate,
        )
        self._recovery = Recovery(
            shape=shape,
            limits=self._limits,
            clock=clock,
            book=book,
            ledger=ledger,
            admission=self._admission,
            batch=self._batch,
            tokenizers=self._tokenizers,
            detokenizers=self._detokenizers,
            encoding=self._encoding,
            texts=self._texts,
            retirement=self._retirement,
            quarantine=quarantine,
            samplers=self._samplers,
            outbox=outbox,
        )
        self._health = Health(
            clock=clock,
            batch=self._batch,
            ledger=ledger,
            tokenizers=self._tokenizers,
            detokenizers=self._detokenizers,
            samplers=self._samplers,
        )
        self._drain = Drain(clock=clock, book=book, retirement=self._retirement, outbox=outbox)
        self._clients = Clients(clock=clock, book=book, retirement=self._retirement)

    def _build_desks(self) -> None:
        book, ledger = self._book, self._ledger
        self._desk = RequestDesk(
            limits=self._limits,
            clock=self._clock,
            draw_seed=self._draw_seed,
            book=book,
            ledger=ledger,
            admission=self._admission,
            batch=self._batch,
            encoding=self._encoding,
            texts=self._texts,
            retirement=self._retirement,
            samplers=self._samplers,
            drain=self._drain,
            backlog=self._backlog,
            outbox=self._outbox,
            counters=self.counters,
        )
        self._canary = Canary(
            clock=self._clock,
            outbox=self._outbox,
            submit=self._desk.submit,
            acknowledge=self._desk.acknowledge,
            report=self.health,
        )
        self._facts = WorkerFacts(
            book=book,
            ledger=ledger,
            admission=self._admission,
            batch=self._batch,
            encoding=self._encoding,
            retirement=self._retirement,
            recovery=self._recovery,
            health=self._health,
            counters=self.counters,
        )

    def _route(self) -> None:
        desk, facts = self._desk, self._facts
        self._client_handlers: dict[type, Callable[[bytes, Any], None]] = {
            SubmitRequest: desk.submit,
            CancelRequest: desk.cancel,
            AckFinished: desk.acknowledge,
            TokenizePrompt: desk.tokenize,
            QueryHealth: self._query_health,
        }
        self._worker_handlers: dict[type, Callable[[Any], None]] = {
            PromptEncoded: facts.prompt_encoded,
            PromptRejected: facts.prompt_rejected,
            ProbeEncoded: self._encoding.probe_encoded,
            StepReport: facts.step_report,
            TextFinished: facts.text_finished,
            ReaderLost: facts.reader_lost,
            WorkerAttached: self._recovery.attached,
            WorkerDied: self._worker_died,
            DrainTree: lambda fact: self._drain.begin(fact.timeout_s),
            LinkChecked: lambda _: None,  # its frame said all
        }

    # --- inputs -------------------------------------------------------------------------------

    def restore(self) -> int:
        """Rebuild from the slot table; returns how many requests it held."""
        num_requests = self._recovery.restore()
        self._clients.forgive(self._limits.ack_timeout_s)
        self._schedule()
        return num_requests

    def handle_client(self, client_id: bytes, message: Any) -> None:
        """One ClientOrder of that client; what follows for others, ``take_outbox`` works out."""
        self._clients.heard(client_id)
        self._client_handlers[type(message)](client_id, message)
        self._is_scheduled = False

    def handle_worker(self, message: Any) -> None:
        """One WorkerFact."""
        self._worker_handlers[type(message)](message)
        self._is_scheduled = False

    def doubt(self, name: str) -> None:
        """Something that was said to or by the worker of that name was lost on the way."""
        self._recovery.doubt(name)

    def handle_unreachable(self, to: Addressed) -> None:
        """``to`` could not be delivered because its addressee is not connected."""
        if isinstance(to, ToWorker):
            self._recovery.unreachable(to.name)
        elif isinstance(to, ToClient):
            self._clients.unreachable(to.client_id)

    def reject_malformed(
        self, client_id: bytes, request_id: bytes | None, error: HybridGenError
    ) -> None:
        """A frame of a client could not be decoded."""
        self.counters.corrupt_frames += 1
        if request_id is not None:
            self._desk.refuse(client_id, request_id, error)

    def tick(self, gpu_progress: int | None = None) -> float:
        """Do what is due by now.

        Args:
            gpu_progress: the gpu process's own progress counter (board), where known.

        Returns:
            Seconds until it should be called again; calling earlier does no harm.
        """
        now_s = self._clock()
        if gpu_progress is not None or now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_S
            self._health.observe(gpu_progress)
        self._watch()
        self._retirement.ring_alarms()
        self._encoding.expire_probes()
        self._clients.cancel_absent()
        self._schedule()
        next_s = min(
            self._next_watch_s,
            self._next_knock_s,
            self._retirement.alarms.next_s(),
            self._encoding.alarms.next_s(),
            self._clients.next_s(),
            self._drain.next_s(),
            self._canary.next_s(),
            self._batch.next_s(),
        )
        return max(next_s - self._clock(), 0.0)

    def note_board(self, *, still: Collection[str], num_samplers: int) -> None:
        """All processes that were found to stand still, and how many samplers are ready."""
        self._health.note_still(still)
        self._samplers.note_ready(num_samplers)

    def take_outbox(self) -> list[Addressed]:
        """What to send, in order; free slots and rows are given out before, once for all inputs."""
        if not self._is_scheduled:
            self._schedule()
        return self._outbox.take()

    def take_finished(self) -> list[FinishedRequest]:
        """Requests that ended since the last call: one log line each."""
        return self._retirement.take_finished()

    def board_counters(self) -> dict[str, int]:
        """Numbers for the board line of the coscheduler."""
        pool = self._batch.pool
        return {
            **self.counters.totals(),
            "preempted": self._batch.num_preempted,
            "overflowed": self._batch.overflows.count,
            "replayed_tokens": self._batch.num_replayed_tokens,
            "looked_up_tokens": self._sharing.num_looked_up_tokens,
            "prefix_hits": self._sharing.num_hits,
            "prefix_hit_tokens": self._sharing.num_hit_tokens,
            "running": len(self._batch.rows),
            "waiting": self._num_waiting,
            "encoding": self._encoding.num_open,
            "free_blocks": 0 if pool is None else pool.num_free,
            "kept_blocks": 0 if pool is None else pool.num_kept,
            "blocks": 0 if pool is None else pool.num_blocks,
        }

    def health(self, request_id: bytes = b"") -> HealthReport:
        """The present report."""
        return self._health.report(
            request_id, num_waiting=self._num_waiting, is_draining=self._drain.is_begun
        )

    # --- inside -------------------------------------------------------------------------------

    @property
    def _num_waiting(self) -> int:
        num_live = len(self._book) - self._retirement.num_over
        return max(num_live - len(self._batch.rows), 0)

    def _watch(self) -> None:
        """Look from time to time whether workers and clients are there."""
        now_s = self._clock()
        has_work = bool(self._book) or self._encoding.num_open > 0
        if has_work:
            self._next_watch_s = min(self._next_watch_s, now_s + WATCH_S)
            self._next_knock_s = min(self._next_knock_s, now_s + WATCH_S)
        if now_s >= self._next_watch_s:
            wait_s = WATCH_S if has_work else IDLE_S
            self._next_watch_s = now_s + (ABSENT_S if self._recovery.ask_again() else wait_s)
        if now_s >= self._next_knock_s:
            self._next_knock_s = now_s + WATCH_S if has_work else math.inf
            self._knock()

    def _knock(self) -> None:
        """What cannot be sent shows a client that has vanished; answers, a lost frame."""
        self._recovery.check_links()
        self._retirement.repeat_finals()
        report = self.health()
        for client_id in self._book.client_ids():
            self._outbox.to_client(client_id, report)

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._canary.step()
        self._desk.seat_backlog()
        self._batch.schedule()
        self._drain.step()

    def _query_health(self, client_id: bytes, order: QueryHealth) -> None:
        self._canary.ask(client_id, order.request_id, is_working=len(self._book) > 0)

    def _worker_died(self, fact: WorkerDied) -> None:
        if fact.role == Role.GATEWAY.label:
            self._clients.gateway_died(fact)
        self._recovery.died(fact)
        self._outbox.to_supervisor(DeathNoted(fact.role, fact.index, fact.incarnation))
