"""A limit on the CPU time of a piece of Python that others wrote."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import Any

from hybridgen.errors import InternalError

#: A limit is noticed this much CPU time late at most. Python drops what is raised inside a
#: destructor or a callback of the collector, so the next tick raises again; by then everything
#: that was interrupted before has unwound.
TICK_S = 0.1


class CpuTimeSpent(BaseException):
    """The time is over. Not an Exception, so that nothing inside catches it by accident."""


class CpuTicks:
    """Context manager: looks at the present limit each time that CPU time has been used.

    Uses ITIMER_PROF (user and system time of the process, so waiting does not count) and SIGPROF;
    both are put back as they were. A process that sets many limits keeps one of these over all of
    them: then a limit costs no system call but the clock's. Main thread only.
    """

    is_on = False

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._previous_handler: Any = None
        self._previous_timer = (0.0, 0.0)

    def __enter__(self) -> CpuTicks:
        _check_thread()
        self._previous_handler = signal.signal(signal.SIGPROF, _on_tick)
        self._previous_timer = signal.setitimer(signal.ITIMER_PROF, self._tick_s, self._tick_s)
        CpuTicks.is_on = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        CpuTicks.is_on = False
        signal.setitimer(signal.ITIMER_PROF, *self._previous_timer)
        signal.signal(signal.SIGPROF, self._previous_handler)


class CpuLimit:
    """Context manager: raises ``CpuTimeSpent`` inside once ``limit_s`` of CPU time are used.

    Under ``CpuTicks``, or with ticks of its own. A single long call into C ends before the limit is
    noticed, which is why the sandbox bounds what such calls may do. Main thread only, not nestable.
    """

    ends_s = math.inf
    """CPU time of the process at which the present limit is reached."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._ticks: CpuTicks | None = None

    def __enter__(self) -> CpuLimit:
        _check_thread()
        if not CpuTicks.is_on:
            self._ticks = CpuTicks(min(TICK_S, self._limit_s))
            self._ticks.__enter__()
        CpuLimit.ends_s = time.process_time() + self._limit_s
        return self

    def __exit__(self, *exc_info: object) -> None:
        CpuLimit.ends_s = math.inf  # first of all: from here on a late tick does nothing
        if self._ticks is not None:
            self._ticks.__exit__()


def _on_tick(_signum: int, frame: FrameType | None) -> None:
    # Raised as the limit is lifted, it would leave the limit standing, over whatever comes next.
    is_lifted = frame is not None and frame.f_code is CpuLimit.__exit__.__code__
    if time.process_time() >= CpuLimit.ends_s and not is_lifted:
        raise CpuTimeSpent


def _check_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise InternalError(
            "a CPU limit works in the main thread only",
            value=threading.current_thread().name,
            remedy="Render chat templates in the main thread of a process",
        )
