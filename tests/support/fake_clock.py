"""Time for tests."""

from __future__ import annotations


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
