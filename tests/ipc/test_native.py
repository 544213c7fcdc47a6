"""Atomics and futexes on private memory; across processes see test_two_processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.ipc import _native

WORD_LIMIT = 2**64


@given(st.integers(0, WORD_LIMIT - 1), st.integers(0, 7))
def test_load_returns_what_store_wrote_and_touches_no_other_word(value: int, index: int) -> None:
    buf = bytearray(64)
    _native.store(buf, index * 8, value)
    expected = [value if i == index else 0 for i in range(8)]
    assert [_native.load(buf, i * 8) for i in range(8)] == expected


@pytest.mark.parametrize("offset", [-8, -1, 57, 64, 2**40])
def test_words_outside_the_buffer_are_refused(offset: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        _native.load(bytearray(64), offset)
    with pytest.raises(ValueError, match="outside"):
        _native.store(bytearray(64), offset, 1)


def test_an_unaligned_word_is_refused() -> None:
    with pytest.raises(ValueError, match="aligned"):
        _native.load(bytearray(64), 4)


@pytest.mark.parametrize("value", [-1, WORD_LIMIT])
def test_store_refuses_what_is_no_word(value: int) -> None:
    with pytest.raises(OverflowError):
        _native.store(bytearray(8), 0, value)


def test_store_refuses_read_only_memory() -> None:
    with pytest.raises(BufferError):
        _native.store(bytes(8), 0, 1)


def test_wait_returns_at_once_when_the_word_already_differs() -> None:
    buf = bytearray(8)
    _native.store(buf, 0, 7)
    started_s = time.monotonic()
    assert _native.wait(buf, 0, 6, 0, 10_000_000) == 7
    assert time.monotonic() - started_s < 1.0


@pytest.mark.parametrize("spin_us", [0, 500, 10_000])
def test_wait_returns_the_expected_value_after_its_time_limit(spin_us: int) -> None:
    started_s = time.monotonic()
    assert _native.wait(bytearray(8), 0, 0, spin_us, 2_000) == 0
    assert time.monotonic() - started_s >= 0.002


@pytest.mark.parametrize("limits", [(-1, 0), (0, -1), (0, 2**63 - 1)])
def test_wait_refuses_absurd_time_limits(limits: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        _native.wait(bytearray(8), 0, 0, *limits)


@pytest.mark.parametrize("spin_us", [0, 1_000_000])
def test_wait_sees_a_store_of_another_thread(spin_us: int) -> None:
    buf = bytearray(8)
    seen: list[int] = []
    waiter = threading.Thread(
        target=lambda: seen.append(_native.wait(buf, 0, 0, spin_us, 10_000_000))
    )
    waiter.start()
    _native.store(buf, 0, 42)
    while waiter.is_alive():  # wakes may come before the waiter sleeps: then it never does
        _native.wake(buf, 0)
        waiter.join(0.001)
    assert seen == [42]


def test_wake_reports_how_many_slept() -> None:
    assert _native.wake(bytearray(8), 0) == 0
    with pytest.raises(ValueError, match="count"):
        _native.wake(bytearray(8), 0, -1)


def test_a_signal_handler_runs_while_a_process_waits() -> None:
    script = (
        "import signal, sys; from hybridgen.ipc import _native\n"
        "def stop(*_): raise SystemExit(3)\n"
        "signal.signal(signal.SIGTERM, stop); print('up', flush=True)\n"
        "while True: _native.wait(bytearray(8), 0, 0, 0, 60_000_000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 3


def test_a_child_dies_with_its_parent() -> None:
    grandchild = (
        "import signal, time; from hybridgen.ipc import _native\n"
        "_native.set_parent_death_signal(signal.SIGKILL); print('up', flush=True); time.sleep(60)\n"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}]); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.kill()
        # The grandchild holds the other end of this pipe: end of file is its death.
        assert child.stdout.read() == ""


def test_set_parent_death_signal_refuses_what_is_no_signal() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        _native.set_parent_death_signal(1000)
