"""The link between a coscheduler and one worker, with a fault proxy in each direction."""

from __future__ import annotations

import random

from hybridgen.ipc.link_end import LinkEnd, WorkerEnd
from hybridgen.scheduler.coscheduler import Coscheduler
from tests.support.fault_proxy import FaultProxy, Mishaps
from tests.support.simulated_workers import SimulatedWorker


class SimulatedLink:
    """Outlives the processes at its ends, and so brings each what was meant for its predecessor."""

    def __init__(self, name: str, chance: random.Random, mishaps: Mishaps) -> None:
        self._name = name
        self.orders = FaultProxy(chance, mishaps)
        self.facts = FaultProxy(chance, mishaps)
        self._here = LinkEnd(0)
        self._there = WorkerEnd(0)

    def coscheduler_born(self, incarnation: int) -> None:
        """A coscheduler that knows nothing of the link."""
        self._here = LinkEnd(incarnation)

    def worker_born(self, incarnation: int) -> None:
        """The same with a worker."""
        self._there = WorkerEnd(incarnation)

    @property
    def num_repeated(self) -> int:
        """Frames that the present processes dropped."""
        return self._here.num_repeated + self._there.num_repeated

    @property
    def num_missed(self) -> int:
        """Frames that the present processes missed."""
        return self._here.num_missed + self._there.num_missed

    def send(self, order: object) -> None:
        """The coscheduler sends an order."""
        self.orders.put(self._here.stamp(order), type(order).__name__)
        self._here.sent()

    def serve(self, worker: SimulatedWorker) -> None:
        """The worker hears one frame, and sends what it has to say."""
        if (frame := self.orders.take()) is not None:
            orders, answer = self._there.hear(frame)
            if answer is not None:
                worker.facts.append(answer)
            worker.inbox.extend(orders)
        while worker.facts:
            fact = worker.facts.popleft()
            self.facts.put(self._there.stamp(fact), type(fact).__name__)
            self._there.sent()

    def hear(self, coscheduler: Coscheduler) -> object | None:
        """The coscheduler hears one frame; the last fact in it, if it counted."""
        frame = self.facts.take()
        facts = [] if frame is None else self._here.take(frame)
        for fact in facts:
            if self._here.take_loss():
                coscheduler.doubt(self._name)
            coscheduler.handle_worker(fact)
        return facts[-1] if facts else None
