"""How fast requests finish, to tell a refused client when to come back."""

from __future__ import annotations

import math

from hybridgen.clock import Clock

WINDOW_S = 30.0
MIN_RETRY_S = 1.0
MAX_RETRY_S = 120.0


class FinishRate:
    """Requests per second, each event fading with time constant WINDOW_S."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_s = clock()
        self._updated_s = self._started_s
        self._weight = 0.0

    def count(self) -> None:
        """A request finished now."""
        self._fade()
        self._weight += 1.0

    def per_s(self) -> float:
        """The present rate; 0 before anything finished."""
        self._fade()
        age_s = self._updated_s - self._started_s
        # Until a window has passed, the faded sum covers only the time since the start.
        span_s = WINDOW_S * -math.expm1(-age_s / WINDOW_S)
        return self._weight / max(span_s, 1.0)

    def retry_after_s(self, num_ahead: int) -> float:
        """Seconds until ``num_ahead`` requests have finished, between 1 and 120."""
        rate = self.per_s()
        if rate <= 0.0:
            return MIN_RETRY_S
        return min(max(num_ahead / rate, MIN_RETRY_S), MAX_RETRY_S)

    def _fade(self) -> None:
        now_s = self._clock()
        self._weight *= math.exp(-(now_s - self._updated_s) / WINDOW_S)
        self._updated_s = now_s
