"""Whether the tree can serve. Readiness proves a recent step; it is never a flag."""

from __future__ import annotations

from hybridgen.clock import Clock
from hybridgen.scheduler.gpu_batch import GpuBatch
from hybridgen.scheduler.slot_ledger import SlotLedger
from hybridgen.scheduler.worker_pool import WorkerPool

MAX_STEP_AGE_S = 10.0


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
    ) -> None:
        self._clock = clock
        self._batch = batch
        self._ledger = ledger
        self._pools = (tokenizers, detokenizers)
        self._progress: tuple[int, int] = (0, 0)
        self._progress_s: float | None = None  # when it last changed
        self._busy_s: float | None = None  # since when there is work

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

    def stepped(self) -> None:
        """The gpu process reported something: it moves."""
        self._progress_s = self._clock()

    @property
    def last_step_age_s(self) -> float | None:
        """Seconds since something moved on the gpu process; None before anything did."""
        return None if self._progress_s is None else self._clock() - self._progress_s

    def status(self, *, is_draining: bool) -> str:
        """``ready``, ``degraded: …``, ``draining``, ``loading`` or ``not ready: …``."""
        missing = self._missing()
        if is_draining:
            return "draining"
        if missing:
            was_there = self._batch.incarnation >= 0
            return f"not ready: {missing}" if was_there else "loading"
        absent = [w.name for pool in self._pools for w in pool.workers if not w.is_attached]
        return f"degraded: without {', '.join(absent)}" if absent else "ready"

    def is_ready(self, *, is_draining: bool) -> bool:
        """Whether a request sent now would be served."""
        return not is_draining and not self._missing()

    def _missing(self) -> str:
        if not self._batch.is_attached:
            return "no gpu process"
        for pool in self._pools:
            if pool.num_attached == 0:
                return f"no {pool.role}"
        if self._stall_s() >= MAX_STEP_AGE_S:
            return f"no step for {self._stall_s():.0f} s"
        return ""

    def _stall_s(self) -> float:
        if self._busy_s is None:
            return 0.0
        since_s = self._busy_s if self._progress_s is None else self._progress_s
        return self._clock() - max(since_s, self._busy_s)
