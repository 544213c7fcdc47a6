"""The line about the tree as a whole: every few seconds while it works, never while it rests."""

from __future__ import annotations

from typing import NamedTuple

#: Between two lines.
INTERVAL_S = 5.0


class Activity(NamedTuple):
    """Levels and totals of the whole tree at one moment."""

    num_running: int
    num_waiting: int
    num_prefilled: int
    """Prompt tokens computed so far."""
    num_sent: int
    """Generated tokens handed to clients so far."""
    kv_usage: float
    """Share of the KV blocks in use, 0 to 1."""


class ActivityLog:
    """Turns what is counted into lines, and silence into none."""

    def __init__(self, now_s: float) -> None:
        self._last = Activity(0, 0, 0, 0, 0.0)
        self._last_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to look again."""
        return now_s >= self._last_s + INTERVAL_S

    def line(self, now: Activity, now_s: float) -> str | None:
        """What happened since the last look; ``None`` when nothing did."""
        took_s, self._last_s = now_s - self._last_s, now_s
        before, self._last = self._last, now
        num_prefilled = _grown(before.num_prefilled, now.num_prefilled)
        num_sent = _grown(before.num_sent, now.num_sent)
        # Prompt tokens alone are a resting tree's own (canary.py): nobody is sent what follows.
        if not (now.num_running or now.num_waiting or num_sent):
            return None
        return (
            f"{now.num_running} running, {now.num_waiting} waiting, "
            f"{num_sent / took_s:.1f} tokens/s out, {num_prefilled / took_s:.1f} prompt tokens/s, "
            f"KV cache {now.kv_usage:.1%} used"
        )


def _grown(before: int, now: int) -> int:
    """Since the last look; a process that was replaced meanwhile has begun at zero."""
    return now - before if now >= before else now
