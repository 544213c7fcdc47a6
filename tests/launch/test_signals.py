from __future__ import annotations

import os
import signal

import pytest

from hybridgen.launch.signals import SignalQueue, StopAsked


def test_stop_signals_are_queued_in_order_and_nothing_else_happens() -> None:
    with SignalQueue() as queue:
        assert queue.take() == []
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        assert queue.take() == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
        assert queue.take() == []


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)]
    with SignalQueue():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_work_that_leaves_nothing_is_interrupted(signum: signal.Signals, code: int) -> None:
    with SignalQueue() as queue:
        with pytest.raises(StopAsked) as caught, queue.interrupting():
            os.kill(os.getpid(), signum)
        assert caught.value.exit_code == code
        os.kill(os.getpid(), signum)  # on the way out: queued again


def test_a_signal_that_came_before_interrupts_at_once() -> None:
    with SignalQueue() as queue:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopAsked), queue.interrupting():
            pytest.fail("went on")
        queue.check()  # it was taken


def test_a_stop_is_no_error_that_somebody_might_handle() -> None:
    assert not issubclass(StopAsked, Exception)
