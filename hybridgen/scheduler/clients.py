"""Clients that cannot be reached: given a little time, then their requests are cancelled."""

from __future__ import annotations

from hybridgen.clock import Clock
from hybridgen.errors import Cancelled
from hybridgen.ipc.runtime_dir import gateway_prefix
from hybridgen.messages import WorkerDied
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.request_record import Ending
from hybridgen.scheduler.retirement import Retirement

#: A client reconnects within this; one that does not is gone.
RECONNECT_S = 1.0


class Clients:
    """Who is missing since when. Whatever a client sends shows that it is there."""

    def __init__(self, *, clock: Clock, book: RequestBook, retirement: Retirement) -> None:
        self._clock = clock
        self._book = book
        self._retirement = retirement
        self._absent: dict[bytes, float] = {}  # client → when its time is up; a handful at most
        self._forgiven_until_s = clock()

    def forgive(self, seconds: float) -> None:
        """A new coscheduler: nobody is connected yet."""
        self._forgiven_until_s = self._clock() + seconds

    def heard(self, client_id: bytes) -> None:
        """The client sent something."""
        if self._absent:
            self._absent.pop(client_id, None)

    def unreachable(self, client_id: bytes) -> None:
        """A message to the client could not be delivered."""
        when_s = max(self._clock() + RECONNECT_S, self._forgiven_until_s)
        self._absent.setdefault(client_id, when_s)

    def cancel_absent(self) -> None:
        """Cancel what belongs to clients whose time is up."""
        now_s = self._clock()
        for client_id, when_s in list(self._absent.items()):
            if when_s > now_s:
                continue
            del self._absent[client_id]
            self._cancel(client_id)

    def gateway_died(self, fact: WorkerDied) -> None:
        """Its client will not come back: the next incarnation has one of its own."""
        prefix = gateway_prefix(fact.index, fact.incarnation)
        for client_id in self._book.client_ids():
            if client_id.startswith(prefix):
                self._cancel(client_id)

    def _cancel(self, client_id: bytes) -> None:
        gone = Cancelled("the client is gone", remedy="Keep the connection open")
        for record in self._book.of_client(client_id):
            self._retirement.drop_reader(record, Ending.of(gone))

    def next_s(self) -> float:
        """When ``cancel_absent`` wants to be called next."""
        return min(self._absent.values(), default=float("inf"))
