from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridgen.config import Config, PoolSection, SchedulerSection
from tests.workers.workplace import Workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """A tree with two samplers; workers take SIGTERM, so its handler is put back."""
    handler = signal.getsignal(signal.SIGTERM)
    config = Config(scheduler=SchedulerSection(prefill_chunk=16), pools=PoolSection(spin_us=0))
    try:
        with Workplace(tmp_path / "run", config) as place:
            yield place
    finally:
        signal.signal(signal.SIGTERM, handler)
