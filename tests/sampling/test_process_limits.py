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
    kinds = (resource.RLIMIT_CPU, resource.RLIMIT_AS)
    before = [resource.getrlimit(kind) for kind in kinds]
    with process_limits(1.0, 2**30):
        inside = [resource.getrlimit(kind) for kind in kinds]
    assert [resource.getrlimit(kind) for kind in kinds] == before
    assert all(soft != resource.RLIM_INFINITY for soft, _ in inside)


def test_memory_beyond_the_limit_is_refused_inside_only() -> None:
    done = subprocess.run([sys.executable, "-c", GRAB], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "given"]


@pytest.mark.slow
def test_time_beyond_the_limit_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", BURN], capture_output=True, check=False)
    assert done.returncode == -signal.SIGXCPU
