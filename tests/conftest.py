"""Every test must leave the process as it found it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.leaks import holdings

_SETTLE_S = 2.0

if not Path("/dev/nvidiactl").exists():
    # Kernels run in Triton's interpreter where no device is. Read when a kernel is defined, so this
    # comes before any import of one.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="module", autouse=True)
def module_leaves_nothing() -> Iterator[None]:
    """Fail a module whose shared fixtures (a running tree) leave something behind."""
    yield from _leave_nothing("the module")


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a segment, descriptor, child or ZeroMQ socket behind.

    Tests that share a running tree open its sockets at first use: there the module is judged.
    """
    if {"integration", "sdk"} & set(request.path.parts):
        yield
    else:
        yield from _leave_nothing("the test")


def _leave_nothing(who: str) -> Iterator[None]:
    baseline = holdings()
    yield
    if not holdings().beyond(baseline):
        return
    gc.collect()  # whatever only waits for its collector is no leak

    def is_clean() -> bool:
        return not holdings().beyond(baseline)

    try:
        eventually(is_clean, _SETTLE_S)
    except AssertionError:
        leaked = "\n  ".join(holdings().beyond(baseline))
        pytest.fail(f"{who} leaked:\n  {leaked}")
