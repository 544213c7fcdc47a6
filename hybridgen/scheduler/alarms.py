"""When to look at a request again, without scanning all of them."""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, Protocol, TypeVar


class Alarmed(Protocol):
    """Carries the time of its one valid alarm; +inf means none."""

    alarm_s: float


Item = TypeVar("Item", bound=Alarmed)

_MIN_COMPACT = 256  # below this, stale entries cost nothing


class Alarms(Generic[Item]):
    """A heap of times. Setting an item's alarm again makes its older entries stale.

    Stale entries are dropped when they come up, and all at once when they outnumber valid ones
    four to one: a request of a few milliseconds leaves a deadline of minutes behind.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._ties = itertools.count()
        self._num_valid = 0

    def __len__(self) -> int:
        return self._num_valid

    def set(self, item: Item, when_s: float) -> None:
        """Ring for ``item`` at ``when_s``, and not at any time set before."""
        if when_s == item.alarm_s:
            return
        if item.alarm_s == float("inf"):
            self._num_valid += 1
        item.alarm_s = when_s
        heapq.heappush(self._heap, (when_s, next(self._ties), item))
        if len(self._heap) > max(_MIN_COMPACT, 4 * self._num_valid):
            self._compact()

    def clear(self, item: Item) -> None:
        """No alarm for ``item`` any more."""
        if item.alarm_s != float("inf"):
            item.alarm_s = float("inf")
            self._num_valid -= 1

    def pop_due(self, now_s: float) -> list[Item]:
        """Items whose time has come; their alarms are cleared."""
        due: list[Item] = []
        while self._heap and self._heap[0][0] <= now_s:
            when_s, _, item = heapq.heappop(self._heap)
            if item.alarm_s == when_s:
                self.clear(item)
                due.append(item)
        return due

    def next_s(self) -> float:
        """Time of the next valid alarm; +inf without one."""
        while self._heap and self._heap[0][2].alarm_s != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def _compact(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].alarm_s == entry[0]]
        heapq.heapify(self._heap)
