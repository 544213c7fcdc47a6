"""Waiting for another process or thread, in place of sleeping for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_PAUSE_S = 0.0005
_MAX_PAUSE_S = 0.02


def eventually(predicate: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Return as soon as ``predicate()`` is true; fail the test after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while not predicate():
        if time.monotonic() > deadline_s:
            what = getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(f"{what} did not come true within {timeout_s} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _MAX_PAUSE_S)
