from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridgen.config import Config, PoolSection, SchedulerSection
from tests.workers.workplace import Workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """A tree with two samplers."""
    with _opened(tmp_path, cut_capacity=0) as place:
        yield place


@pytest.fixture
def cut_workplace(tmp_path: Path) -> Iterator[Workplace]:
    """The same with a ring for cuts."""
    with _opened(tmp_path, cut_capacity=8) as place:
        yield place


@contextlib.contextmanager
def _opened(path: Path, cut_capacity: int) -> Iterator[Workplace]:
    """Workers take SIGTERM, so its handler is put back."""
    handler = signal.getsignal(signal.SIGTERM)
    config = Config(scheduler=SchedulerSection(prefill_chunk=16), pools=PoolSection(spin_us=0))
    try:
        with Workplace(path / "run", config, cut_capacity=cut_capacity) as place:
            yield place
    finally:
        signal.signal(signal.SIGTERM, handler)
