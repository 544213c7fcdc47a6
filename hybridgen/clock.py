"""Time, injected wherever logic needs it, so that tests never sleep."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Returns seconds on a clock that never jumps. Shared by all processes of one machine
#: (CLOCK_MONOTONIC), so stamps written into shared memory can be compared by anyone.
Clock = Callable[[], float]

monotonic_s: Clock = time.monotonic
monotonic_ns: Callable[[], int] = time.monotonic_ns


class FakeClock:
    """A clock that moves only when told to (tests, simulations)."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """The time it was last moved to."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self.now_s += seconds
