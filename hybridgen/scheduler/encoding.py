"""Prompts on their way through the tokenizers, with a slot or (TokenizePrompt) without."""

from __future__ import annotations

import dataclasses

from hybridgen.clock import Clock
from hybridgen.errors import DeadlineExceeded, HybridGenError, QueueFull
from hybridgen.ipc.slot_table import SlotState
from hybridgen.messages import (
    EncodeProbe,
    EncodePrompt,
    ErrorInfo,
    ProbeEncoded,
    PromptEncoded,
    PromptRejected,
    PromptTokenized,
    TokenizePrompt,
)
from hybridgen.request import Prompt
from hybridgen.scheduler.alarms import Alarms
from hybridgen.scheduler.outbox import Outbox
from hybridgen.scheduler.quarantine import POISON_DEATHS, poison
from hybridgen.scheduler.request_record import RequestRecord
from hybridgen.scheduler.worker_pool import PoolWorker, WorkerPool

PROBE_TIMEOUT_S = 60.0
MAX_PROBES = 1024


@dataclasses.dataclass(eq=False, slots=True)
class Probe:
    """One TokenizePrompt."""

    probe_id: int
    client_id: bytes
    request_id: bytes
    prompt: Prompt
    worker: PoolWorker
    num_deaths: int = 0  # of tokenizers that worked on it
    alarm_s: float = float("inf")


class Encoding:
    """Who encodes what. A tokenizer works in order, so the oldest is the one in its hands."""

    def __init__(
        self, *, tokenizers: WorkerPool, outbox: Outbox, clock: Clock, first_probe_id: int
    ) -> None:
        self._tokenizers = tokenizers
        self._outbox = outbox
        self._clock = clock
        self._next_probe_id = first_probe_id
        self._probes: dict[int, Probe] = {}
        self._probe_names: dict[tuple[bytes, bytes], Probe] = {}
        self.alarms: Alarms[Probe] = Alarms()

    @property
    def num_open(self) -> int:
        """Prompts that wait for a tokenizer or are in one's hands."""
        return sum(worker.load for worker in self._tokenizers.workers)

    def is_stale(self, record: RequestRecord, fact: PromptEncoded | PromptRejected) -> bool:
        """Whether the answer comes from another process than the one that has the prompt now."""
        if fact.incarnation == 0:
            return False
        worker = self._tokenizers[record.tokenizer]
        return fact.tokenizer != worker.index or fact.incarnation < worker.incarnation

    def check(self) -> None:
        """Prompts can be encoded, now or soon.

        Raises:
            RestartBudgetSpent: no tokenizer is left.
        """
        self._tokenizers.check()

    def assign(self, record: RequestRecord) -> None:
        """Choose a tokenizer.

        Raises:
            RestartBudgetSpent: none is left.
        """
        record.tokenizer = self._tokenizers.choose().index

    def start(self, record: RequestRecord) -> None:
        """Have the prompt encoded, now or as soon as the tokenizer is there."""
        worker = self._tokenizers[record.tokenizer]
        worker.records[record.slot] = record
        if worker.is_attached:
            self._send(worker, record)

    def answered(self, record: RequestRecord) -> None:
        """The tokenizer is done with one order for ``record``."""
        record.num_encodes = max(record.num_encodes - 1, 0)
        if record.num_encodes == 0:
            self.withdraw(record)

    def withdraw(self, record: RequestRecord) -> None:
        """Not wanted any more; kept in mind while the tokenizer may still write its ids."""
        if record.num_encodes == 0 and record.tokenizer in self._tokenizers:
            self._tokenizers[record.tokenizer].records.pop(record.slot, None)

    def lose(self, worker: PoolWorker) -> list[RequestRecord]:
        """Orders that ``worker`` got before will not be answered; returns those not wanted."""
        unwanted = []
        for record in list(worker.records.values()):
            record.num_encodes = 0
            if record.is_over or record.state is not SlotState.ENCODING:
                del worker.records[record.slot]
                unwanted.append(record)
        return unwanted

    def resend(self, worker: PoolWorker) -> None:
        """``worker`` attached: give it all its work."""
        for record in list(worker.records.values()):
            self._send(worker, record)
        for probe in self._probes.values():
            if probe.worker is worker:
                self._outbox.to_worker(worker.name, EncodeProbe(probe.probe_id, probe.prompt))

    def move_probes(self, worker: PoolWorker) -> None:
        """``worker`` is lost for good: others answer its probes, or an error does."""
        for probe in [probe for probe in self._probes.values() if probe.worker is worker]:
            worker.num_probes -= 1
            try:
                probe.worker = self._tokenizers.choose()
            except HybridGenError as error:
                probe.worker.num_probes += 1
                self._answer(probe, [], ErrorInfo.of(error))
                continue
            probe.worker.num_probes += 1
            if probe.worker.is_attached:
                self._outbox.to_worker(probe.worker.name, EncodeProbe(probe.probe_id, probe.prompt))

    def probe_killed(self, probe_id: int) -> None:
        """A tokenizer died on this probe; the second time the probe is why."""
        probe = self._probes.get(probe_id)
        if probe is None:
            return
        probe.num_deaths += 1
        if probe.num_deaths >= POISON_DEATHS:
            self._answer(probe, [], ErrorInfo.of(poison("tokenizer", probe.num_deaths)))

    def start_probe(self, client_id: bytes, order: TokenizePrompt) -> None:
        """Encode without a slot.

        Raises:
            RestartBudgetSpent: no tokenizer is left.
            QueueFull: too many are under way.
        """
        if (client_id, order.request_id) in self._probe_names:
            return
        if len(self._probes) >= MAX_PROBES:
            raise QueueFull(
                "too many prompts are being tokenized",
                value=len(self._probes),
                limit=MAX_PROBES,
                remedy="Wait for answers before sending more",
                retry_after_s=1.0,
            )
        worker = self._tokenizers.choose()
        probe = Probe(self._next_probe_id, client_id, order.request_id, order.prompt, worker)
        self._next_probe_id += 1
        self._probes[probe.probe_id] = probe
        self._probe_names[client_id, order.request_id] = probe
        worker.num_probes += 1
        self.alarms.set(probe, self._clock() + PROBE_TIMEOUT_S)
        if worker.is_attached:
            self._outbox.to_worker(worker.name, EncodeProbe(probe.probe_id, probe.prompt))

    def probe_encoded(self, fact: ProbeEncoded) -> None:
        """Pass the answer on; a repeated or late one is ignored."""
        probe = self._probes.get(fact.probe_id)
        if probe is not None:
            self._answer(probe, fact.ids, fact.error)

    def expire_probes(self) -> None:
        """Answer those that took too long with an error."""
        for probe in self.alarms.pop_due(self._clock()):
            error = DeadlineExceeded(
                "no tokenizer answered in time",
                limit=PROBE_TIMEOUT_S,
                remedy="Try again; see the health report",
            )
            self._answer(probe, [], ErrorInfo.of(error))

    def _send(self, worker: PoolWorker, record: RequestRecord) -> None:
        if record.prompt is None:
            return  # lost with a coscheduler: only the client can repeat it
        record.num_encodes += 1
        params = record.params
        order = EncodePrompt(
            record.slot, record.epoch, record.prompt, params.grammar, params.stop_regex
        )
        self._outbox.to_worker(worker.name, order)

    def _answer(self, probe: Probe, ids: list[int], error: ErrorInfo | None) -> None:
        del self._probes[probe.probe_id]
        del self._probe_names[probe.client_id, probe.request_id]
        self.alarms.clear(probe)
        probe.worker.num_probes -= 1
        self._outbox.to_client(probe.client_id, PromptTokenized(probe.request_id, ids, error))
