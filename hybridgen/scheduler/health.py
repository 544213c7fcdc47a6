"""Whether the tree can serve. Readiness proves a recent step; it is never a flag."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hybridgen.clock import Clock
from hybridgen.messages import HealthReport
from hybridgen.scheduler.gpu_batch import GpuBatch
from hybridgen.scheduler.sampler_watch import SamplerWatch
from hybridgen.scheduler.slot_ledger import SlotLedger
from hybridgen.scheduler.worker_pool import PoolWorker, WorkerPool

MAX_STEP_AGE_S = 10.0
#: Roles without which, each of them, no step is ever over.
_EVERY_STEP = ("gpu-", "sampler-")


class Health:
    """Watches tokens appear (and whatever else the caller sees move)."""

    def __init__(
        self,
        *,
        clock: Clock,
        batch: GpuBatch,
        ledger: SlotLedger,
        tokenizers: WorkerPool,
        detokenizers: WorkerPool,
        samplers: SamplerWatch,
    ) -> None:
        self._clock = clock
        self._batch = batch
        self._ledger = ledger
        self._pools = (tokenizers, detokenizers)
        self._samplers = samplers
        self._progress: tuple[int, int] = (0, 0)
        self._progress_s: float | None = None  # when it last changed
        self._busy_s: float | None = None  # since when there is work
        self._still: frozenset[str] = frozenset()  # processes that do not move

    def observe(self, gpu_progress: int | None = None) -> None:
        """Look at the running rows, and at the gpu process's own progress counter where given."""
        now_s = self._clock()
        if not self._batch.has_work:
            self._busy_s = None
        elif self._busy_s is None:
            self._busy_s = now_s
        generated = sum(map(self._ledger.num_generated, self._batch.rows.values()))
        progress = (generated, self._progress[1] if gpu_progress is None else gpu_progress)
        if progress != self._progress:
            self._progress = progress
            self._progress_s = now_s

    def note_still(self, names: Collection[str]) -> None:
        """Those that the supervisor found to stand still, all of them."""
        self._still = frozenset(names)

    def stepped(self) -> None:
        """The gpu process reported something: it moves."""
        self._progress_s = self._clock()

    @property
    def last_step_age_s(self) -> float | None:
        """Seconds since something moved on the gpu process; None before anything did."""
        return None if self._progress_s is None else self._clock() - self._progress_s

    def report(self, request_id: bytes, *, num_waiting: int, is_draining: bool) -> HealthReport:
        """The present state, without a proof beyond the steps that were made."""
        self.observe()
        pool, ledger = self._batch.pool, self._ledger
        return HealthReport(
            request_id=request_id,
            is_ready=self.is_ready(is_draining=is_draining),
            status=self.status(is_draining=is_draining),
            num_running=len(self._batch.rows),
            num_waiting=num_waiting,
            num_free_blocks=0 if pool is None else pool.num_free,
            num_blocks=0 if pool is None else pool.num_blocks,
            num_slots=ledger.num_slots,
            num_free_slots=ledger.num_free,
            last_step_age_s=self.last_step_age_s,
        )

    def status(self, *, is_draining: bool) -> str:
        """``ready``, ``degraded: …``, ``draining``, ``loading`` or ``not ready: …``."""
        missing = self._missing()
        if is_draining:
            return "draining"
        if missing:
            was_there = self._batch.incarnation >= 0
            return f"not ready: {missing}" if was_there else "loading"
        absent = [w.name for pool in self._pools for w in pool.workers if not self._is_there(w)]
        return f"degraded: without {', '.join(absent)}" if absent else "ready"

    def is_ready(self, *, is_draining: bool) -> bool:
        """Whether a request sent now would be served."""
        return not is_draining and not self._missing()

    def _missing(self) -> str:
        return next(self._troubles(), "")

    def _troubles(self) -> Iterator[str]:
        """Why a request sent now would not be served."""
        if not self._batch.is_attached:
            yield "no gpu process"
        if self._samplers.is_missing:
            yield "no sampler"
        for pool in self._pools:
            if pool.num_attached == 0:
                yield f"no {pool.role}"
            elif not any(map(self._is_there, pool.workers)):
                yield f"no {pool.role} that moves"
        for name in sorted(self._still):
            if name.startswith(_EVERY_STEP):
                yield f"{name} stands still"
        if self._stall_s() >= MAX_STEP_AGE_S:
            yield f"no step for {self._stall_s():.0f} s"

    def _is_there(self, worker: PoolWorker) -> bool:
        return worker.is_attached and worker.name not in self._still

    def _stall_s(self) -> float:
        if self._busy_s is None:
            return 0.0
        since_s = self._busy_s if self._progress_s is None else self._progress_s
        return self._clock() - max(since_s, self._busy_s)
