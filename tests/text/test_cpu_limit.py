from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from hybridgen.errors import InternalError
from hybridgen.text.cpu_limit import CpuLimit, CpuTicks, CpuTimeSpent


def _burn() -> None:
    while True:
        sum(range(1000))


def test_endless_work_is_ended_and_everything_put_back() -> None:
    before = signal.getsignal(signal.SIGPROF)
    with pytest.raises(CpuTimeSpent), CpuLimit(0.02):
        _burn()
    assert signal.getsignal(signal.SIGPROF) is before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_signal_lost_in_a_destructor_comes_again() -> None:
    class Swallows:
        def __del__(self) -> None:
            # as the interpreter does with whatever a destructor raises
            with contextlib.suppress(CpuTimeSpent):
                _burn()

    def burn_twice() -> None:
        Swallows()
        _burn()

    with pytest.raises(CpuTimeSpent), CpuLimit(0.02):
        burn_twice()


def test_short_work_passes_and_leaves_no_timer() -> None:
    with CpuLimit(0.02) as limit:
        assert limit is not None
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_limits_under_ticks_touch_neither_signal_nor_timer() -> None:
    before = signal.getsignal(signal.SIGPROF)
    with CpuTicks(0.01):
        handler = signal.getsignal(signal.SIGPROF)
        assert handler is not before
        for _ in range(2):
            with pytest.raises(CpuTimeSpent), CpuLimit(0.02):
                _burn()
            assert signal.getsignal(signal.SIGPROF) is handler
            assert signal.getitimer(signal.ITIMER_PROF) != (0.0, 0.0)
    assert signal.getsignal(signal.SIGPROF) is before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_ticks_without_a_limit_end_nothing() -> None:
    with CpuTicks(0.01):
        ends_s = time.process_time() + 0.03
        while time.process_time() < ends_s:
            sum(range(1000))


def test_a_tick_as_a_limit_is_lifted_leaves_it_lifted() -> None:
    tracer, ticks = sys.gettrace(), 0

    def tick(frame: FrameType, _event: str, _argument: Any) -> None:
        nonlocal ticks
        if frame.f_code is CpuLimit.__exit__.__code__:
            ticks += 1
            handler(signal.SIGPROF, frame)

    with CpuTicks(60.0):
        handler: Any = signal.getsignal(signal.SIGPROF)
        try:
            with CpuLimit(0.0):
                sys.settrace(tick)
        finally:
            sys.settrace(tracer)
        assert ticks == 1
        assert CpuLimit.ends_s == math.inf


def test_other_threads_are_refused() -> None:
    caught: list[InternalError] = []

    def enter() -> None:
        try:
            with CpuLimit(1.0):
                pass
        except InternalError as error:
            caught.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert len(caught) == 1
