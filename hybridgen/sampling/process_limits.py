"""The last bound on native code that cannot be interrupted: the process ends instead.

A process of a pool may end at any time: it is replaced, and a request that ends its process twice
is quarantined. So what no other limit foresaw costs seconds, and never the server.
"""

from __future__ import annotations

import contextlib
import math
import resource
import time
from collections.abc import Iterator


@contextlib.contextmanager
def process_limits(cpu_s: float, memory_bytes: int) -> Iterator[None]:
    """The kernel ends this process when what happens inside goes too far.

    Args:
        cpu_s: CPU time from now on, user and system, of all threads; counted in whole seconds, so
            up to two more may pass.
        memory_bytes: address space beyond what is mapped now; an allocation that fails is for the
            code inside to survive or not.
    """
    cpu_limit_s = math.ceil(time.process_time() + cpu_s) + 1
    with (
        _soft_limit(resource.RLIMIT_CPU, cpu_limit_s),
        _soft_limit(resource.RLIMIT_AS, _mapped_bytes() + memory_bytes),
    ):
        yield


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
