"""What a process may use while it runs code that cannot be interrupted."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

from hybridgen.sampling.process_limits import process_limits

BURN = """
from hybridgen.sampling.process_limits import process_limits
with process_limits(0.0, 2**30):
    sum(range(10**12))
"""
GRAB = """
from hybridgen.sampling.process_limits import process_limits
try:
    with process_limits(60.0, 2**26):
        bytearray(2**28)
except MemoryError:
    print("refused")
bytearray(2**28)
print("given")
"""


def test_limits_are_as_before_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS), signal.getitimer(signal.ITIMER_PROF)
    with process_limits(9.0, 2**30):
        assert resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        assert 8.0 < signal.getitimer(signal.ITIMER_PROF)[0] <= 9.1
    after = resource.getrlimit(resource.RLIMIT_AS), signal.getitimer(signal.ITIMER_PROF)
    assert after == before


def test_the_time_that_the_process_has_used_before_does_not_count() -> None:
    before = resource.getrlimit(resource.RLIMIT_CPU)
    with process_limits(9.0, 2**30):
        assert resource.getrlimit(resource.RLIMIT_CPU) == before  # whose time nobody can read


def test_a_signal_that_was_ignored_ends_the_process_all_the_same() -> None:
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        with process_limits(9.0, 2**30):
            assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGPROF, before)


def test_memory_beyond_the_limit_is_refused_inside_only() -> None:
    done = subprocess.run([sys.executable, "-c", GRAB], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "given"]


@pytest.mark.slow
def test_time_beyond_the_limit_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", BURN], capture_output=True, check=False)
    assert done.returncode == -signal.SIGPROF
