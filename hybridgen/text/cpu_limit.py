"""A limit on the CPU time of a piece of Python that others wrote."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from hybridgen.errors import InternalError

#: Python drops what is raised inside a destructor or a callback of the collector, so the signal
#: comes again; long enough after the first for everything to have unwound.
_REPEAT_S = 0.1


class CpuTimeSpent(BaseException):
    """The time is over. Not an Exception, so that nothing inside catches it by accident."""


class CpuLimit:
    """Context manager: raises ``CpuTimeSpent`` inside once ``limit_s`` of CPU time are used.

    Uses ITIMER_PROF (user and system time of the process, so waiting does not count) and SIGPROF;
    both are put back as they were. A single long call into C ends before it is noticed, which is
    why the sandbox bounds what such calls may do. Main thread only, not nestable.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_armed = False
        self._previous_handler: Any = None
        self._previous_timer = (0.0, 0.0)

    def __enter__(self) -> CpuLimit:
        if threading.current_thread() is not threading.main_thread():
            raise InternalError(
                "a CPU limit works in the main thread only",
                value=threading.current_thread().name,
                remedy="Render chat templates in the main thread of a process",
            )
        self._previous_handler = signal.signal(signal.SIGPROF, self._on_signal)
        self._is_armed = True
        self._previous_timer = signal.setitimer(
            signal.ITIMER_PROF, self._limit_s, max(_REPEAT_S, self._limit_s / 4)
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_armed = False  # first of all: from here on a late signal does nothing
        signal.setitimer(signal.ITIMER_PROF, *self._previous_timer)
        signal.signal(signal.SIGPROF, self._previous_handler)

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        if self._is_armed:
            raise CpuTimeSpent
