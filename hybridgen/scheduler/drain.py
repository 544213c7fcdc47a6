"""The end of the tree: no new work, what runs may finish, the rest is cut."""

from __future__ import annotations

from hybridgen.clock import Clock
from hybridgen.errors import Draining
from hybridgen.messages import TreeDrained
from hybridgen.scheduler.outbox import Outbox
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.retirement import Retirement

#: After the cut, how long final messages and acks may take.
LAST_WORDS_S = 0.5


class Drain:
    """Idle until it is begun; then it moves with every tick."""

    def __init__(
        self, *, clock: Clock, book: RequestBook, retirement: Retirement, outbox: Outbox
    ) -> None:
        self._clock = clock
        self._book = book
        self._retirement = retirement
        self._outbox = outbox
        self._limit_s = float("inf")
        self._num_cut = 0
        self._is_cut = False
        self._is_reported = False
        self.is_begun = False

    def begin(self, timeout_s: float) -> None:
        """Start; a repeat may only shorten the time."""
        self.is_begun = True
        self._is_reported = False
        self._limit_s = min(self._limit_s, self._clock() + timeout_s)

    def refuse(self) -> None:
        """New work is not taken.

        Raises:
            Draining: once begun.
        """
        if self.is_begun:
            raise self._error("the server is stopping and takes no new requests")

    def step(self) -> None:
        """Cut at the limit; report when nothing is left."""
        if not self.is_begun or self._is_reported:
            return
        now_s = self._clock()
        if now_s >= self._limit_s and not self._is_cut:
            self._is_cut = True
            for record in self._book:
                if not record.is_over:
                    self._num_cut += 1
                    error = self._error("the server stopped before the request was finished")
                    self._retirement.end(record, error)
        if not len(self._book) or now_s >= self._limit_s + LAST_WORDS_S:
            self._is_reported = True
            self._outbox.to_supervisor(TreeDrained(self._num_cut))

    def next_s(self) -> float:
        """When ``step`` wants to be called next."""
        if not self.is_begun or self._is_reported:
            return float("inf")
        return self._limit_s + LAST_WORDS_S if self._is_cut else self._limit_s

    def _error(self, message: str) -> Draining:
        return Draining(message, remedy="Send it to another server, or again after the restart")
