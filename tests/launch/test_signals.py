from __future__ import annotations

import os
import signal

from hybridgen.launch.signals import SignalQueue


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
