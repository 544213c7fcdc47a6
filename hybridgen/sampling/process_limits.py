"""The last bound on native code that cannot be interrupted: the process ends instead.

A process of a pool may end at any time: it is replaced, and a request that ends its process twice
is quarantined. So what no other limit foresaw costs seconds, and never the server.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator

_LEAST_S = 0.001  # a timer of none is off


@contextlib.contextmanager
def process_limits(cpu_s: float, memory_bytes: int) -> Iterator[None]:
    """The kernel ends this process when what happens inside goes too far.

    For the main thread.

    Args:
        cpu_s: CPU time from now on, user and system, of all threads; SIGPROF comes behind it.
        memory_bytes: address space beyond what is mapped now; an allocation that fails is for the
            code inside to survive or not.
    """
    with _time_limit(cpu_s), _soft_limit(resource.RLIMIT_AS, _mapped_bytes() + memory_bytes):
        yield


@contextlib.contextmanager
def _time_limit(cpu_s: float) -> Iterator[None]:
    # No RLIMIT_CPU: that counts from the start of the process, in ticks which the kernel charges to
    # whoever runs as they come. Beside processes that wake with the ticks it is off by half of all
    # time that was ever used, and nobody can read how much; a timer is by half of cpu_s at most.
    if signal.getsignal(signal.SIGPROF) == signal.SIG_IGN:  # inherited
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    before = signal.setitimer(signal.ITIMER_PROF, max(cpu_s, _LEAST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, *before)


@contextlib.contextmanager
def _soft_limit(kind: int, limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    lower = [limit, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(kind, (min(lower), hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def _mapped_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
