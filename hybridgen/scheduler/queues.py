"""Requests that wait: first in, first out within a priority."""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar


class Ranked(Protocol):
    """Anything with a place in the order: the smaller rank goes first."""

    @property
    def rank(self) -> tuple[int, int]:
        """(-priority, arrival number); unique."""


Item = TypeVar("Item", bound=Ranked)


class RequestQueue(Generic[Item]):
    """A priority queue with O(log n) push and pop and O(1) removal.

    The rank of a request never changes. So one that was preempted comes back in front of all
    that arrived after it, which is what keeps two requests from preempting each other for ever.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []  # ranks; those not in _members are stale
        self._members: dict[tuple[int, int], Item] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, item: Item) -> bool:
        return item.rank in self._members

    def push(self, item: Item) -> None:
        """Add; pushing what is in already changes nothing."""
        if item.rank in self._members:
            return
        self._members[item.rank] = item
        heapq.heappush(self._heap, item.rank)

    def peek(self) -> Item | None:
        """The first, still in the queue."""
        self._drop_removed()
        return self._members[self._heap[0]] if self._heap else None

    def pop(self) -> Item | None:
        """The first, taken out."""
        self._drop_removed()
        if not self._heap:
            return None
        return self._members.pop(heapq.heappop(self._heap))

    def remove(self, item: Item) -> bool:
        """Take ``item`` out wherever it stands; whether it was in."""
        if self._members.pop(item.rank, None) is None:
            return False
        if len(self._heap) > 64 + 2 * len(self._members):
            self._heap = list(self._members)
            heapq.heapify(self._heap)
        return True

    def items(self) -> list[Item]:
        """All members, in no order."""
        return list(self._members.values())

    def _drop_removed(self) -> None:
        while self._heap and self._heap[0] not in self._members:
            heapq.heappop(self._heap)
