"""The tokenizers, or the detokenizers: who is there and who has least to do."""

from __future__ import annotations

from hybridgen.errors import InternalError, RestartBudgetSpent
from hybridgen.scheduler.request_record import RequestRecord


class PoolWorker:
    """One place in a pool, whoever sits in it at the moment."""

    __slots__ = (
        "call",
        "incarnation",
        "index",
        "is_attached",
        "is_lost",
        "name",
        "num_probes",
        "records",
    )

    def __init__(self, role: str, index: int) -> None:
        self.name = f"{role}-{index}"
        self.index = index
        self.incarnation = -1  # of the process that attached last
        self.is_attached = False
        self.call = 0  # times that it was there and had to introduce itself again
        self.is_lost = False  # no replacement will come
        self.records: dict[int, RequestRecord] = {}  # slot → what it works on, oldest first
        self.num_probes = 0  # work without a slot

    @property
    def load(self) -> int:
        """Pieces of work in its hands."""
        return len(self.records) + self.num_probes


class WorkerPool:
    """Workers of one role, by index. Pools are small; choosing looks at each of them."""

    def __init__(self, role: str, num_workers: int) -> None:
        self.role = role
        self.workers = [PoolWorker(role, index) for index in range(num_workers)]

    def __getitem__(self, index: int) -> PoolWorker:
        """Worker of that index.

        Raises:
            InternalError: no such worker.
        """
        if not 0 <= index < len(self.workers):
            raise InternalError(f"no such {self.role}", value=index, limit=len(self.workers))
        return self.workers[index]

    def __contains__(self, index: int) -> bool:
        return 0 <= index < len(self.workers)

    @property
    def num_attached(self) -> int:
        """Workers that are there."""
        return sum(worker.is_attached for worker in self.workers)

    @property
    def is_lost(self) -> bool:
        """Whether nobody is left and nobody will come."""
        return all(worker.is_lost for worker in self.workers)

    def choose(self) -> PoolWorker:
        """The one with the least load, of those attached; else of those that will come.

        Raises:
            RestartBudgetSpent: none is left.
        """
        candidates = [worker for worker in self.workers if worker.is_attached]
        candidates = candidates or [worker for worker in self.workers if not worker.is_lost]
        if not candidates:
            raise self._lost_error()
        return candidates[0] if len(candidates) == 1 else min(candidates, key=_load)

    def check(self) -> None:
        """Somebody is left, or will come.

        Raises:
            RestartBudgetSpent: nobody.
        """
        if self.is_lost:
            raise self._lost_error()

    def _lost_error(self) -> RestartBudgetSpent:
        """Why nothing can be done any more."""
        return RestartBudgetSpent(
            f"no {self.role} is left",
            value=0,
            limit=len(self.workers),
            remedy="See the log for why it kept dying, then restart the server",
        )


def _load(worker: PoolWorker) -> int:
    return worker.load
