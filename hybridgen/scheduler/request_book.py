"""All live requests, found by what messages call them."""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.messages import RequestFinished
from hybridgen.scheduler.request_record import RequestRecord

Key = tuple[bytes, bytes]

#: Final messages kept for clients that repeat an order after their request was forgotten: so many
#: at least, at most twice as many. They are given up all at once, since a dict that always loses
#: its oldest entry is laid out anew time and again, and memory grows by the copies.
MIN_REMEMBERED = 2048


class RequestBook:
    """Every lookup is O(1)."""

    def __init__(self, num_slots: int) -> None:
        self._by_key: dict[Key, RequestRecord] = {}
        self._by_slot: list[RequestRecord | None] = [None] * num_slots
        self._by_client: dict[bytes, dict[bytes, RequestRecord]] = {}
        self._finals: dict[Key, RequestFinished] = {}
        self._older_finals: dict[Key, RequestFinished] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(list(self._by_key.values()))

    def add(self, record: RequestRecord) -> None:
        """Enter a new request; a remembered end of an earlier one with its name is forgotten."""
        self._by_key[record.key] = record
        self._by_client.setdefault(record.client_id, {})[record.request_id] = record
        self._finals.pop(record.key, None)
        self._older_finals.pop(record.key, None)

    def seat(self, record: RequestRecord) -> None:
        """Make ``record`` findable by its slot."""
        self._by_slot[record.slot] = record

    def remove(self, record: RequestRecord) -> None:
        """Forget all but the final message."""
        self._by_key.pop(record.key, None)
        requests = self._by_client.get(record.client_id, {})
        requests.pop(record.request_id, None)
        if not requests:
            self._by_client.pop(record.client_id, None)
        if record.has_slot:
            self._by_slot[record.slot] = None
        if record.final is not None:
            self._finals[record.key] = record.final
            if len(self._finals) >= MIN_REMEMBERED:
                self._older_finals, self._finals = self._finals, {}

    def find(self, client_id: bytes, request_id: bytes) -> RequestRecord | None:
        """The live request of that name."""
        return self._by_key.get((client_id, request_id))

    def final(self, client_id: bytes, request_id: bytes) -> RequestFinished | None:
        """How a request that is no longer live ended, as far as remembered."""
        key = (client_id, request_id)
        return self._finals.get(key) or self._older_finals.get(key)

    def occupant(self, slot: int, epoch: int) -> RequestRecord | None:
        """The request in ``slot`` if it is the one that ``epoch`` names; else None (stale)."""
        if not 0 <= slot < len(self._by_slot):
            return None
        record = self._by_slot[slot]
        return record if record is not None and record.epoch == epoch else None

    def client_ids(self) -> list[bytes]:
        """Clients that have live requests."""
        return list(self._by_client)

    def of_client(self, client_id: bytes) -> list[RequestRecord]:
        """All live requests of one client."""
        return list(self._by_client.get(client_id, {}).values())
