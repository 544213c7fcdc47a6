"""What the front door counts; copied to the board by the process around it."""

from __future__ import annotations


class Counters:
    """Plain numbers that only grow, apart from ``open``. Written by the application's loop."""

    __slots__ = ("disconnects", "errors", "open", "refused", "requests", "streams")

    def __init__(self) -> None:
        self.requests = 0
        self.streams = 0  # answers sent as events, from their first byte on
        self.errors = 0  # 5xx, and errors within a stream
        self.refused = 0  # 4xx
        self.disconnects = 0  # clients that left before their answer was complete
        self.open = 0  # requests in hand now

    def answered(self, status: int) -> None:
        """Count a whole answer by its status."""
        if status >= 500:
            self.errors += 1
        elif status >= 400:
            self.refused += 1
