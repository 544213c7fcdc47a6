"""One timer for all that wait equally long, where each would otherwise have its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Sleeper = TypeVar("Sleeper")


class Alarms(Generic[Sleeper]):
    """Wakes those that were not done in time, at most one clock tick of the loop late.

    All wait for the same time, so the first in is the first due: to set and to call off an alarm
    is one operation on a dictionary, and the loop's own timer fires once for many.

    Args:
        after_s: how long after ``set``.
        wake: called with who has waited so long; must not raise.
    """

    def __init__(self, after_s: float, wake: Callable[[Sleeper], None]) -> None:
        self._after_s = after_s
        self._wake = wake
        self._due_s: dict[Sleeper, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, sleeper: Sleeper) -> None:
        """Wake ``sleeper`` once, from now on counted; needs the running loop."""
        loop = asyncio.get_running_loop()
        self._due_s.pop(sleeper, None)
        self._due_s[sleeper] = loop.time() + self._after_s
        if self._timer is None:
            self._timer = loop.call_later(self._after_s, self._ring)

    def call_off(self, sleeper: Sleeper) -> None:
        """Do not wake ``sleeper``; safe to repeat."""
        self._due_s.pop(sleeper, None)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now_s = loop.time()
        late = []
        for sleeper, due_s in self._due_s.items():
            if due_s > now_s:
                self._timer = loop.call_at(due_s, self._ring)
                break
            late.append(sleeper)
        for sleeper in late:
            del self._due_s[sleeper]
        for sleeper in late:
            self._wake(sleeper)
