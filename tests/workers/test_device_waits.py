"""Whose fault it is that a device's loop waits: only its own device's counts as a hang."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridgen.config import Config, DeviceSection, PoolSection, SchedulerSection
from hybridgen.scheduler.device_row import StateLayout
from hybridgen.workers.device_ring import DeviceRing
from tests.support.stream_device import StreamDevice
from tests.workers.workplace import MAX_ROWS, Workplace

NUM_BLOCKS = 16


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    handler = signal.getsignal(signal.SIGTERM)
    config = Config(
        device=DeviceSection(device="cuda"),
        scheduler=SchedulerSection(max_num_seqs=MAX_ROWS),
        pools=PoolSection(spin_us=0),
    )
    try:
        with Workplace(tmp_path / "run", config, ring_depth=3) as workplace:
            workplace.open_coscheduler()
            yield workplace
    finally:
        signal.signal(signal.SIGTERM, handler)


def ring_in(place: Workplace) -> DeviceRing:
    context = place.context("gpu-0")
    ring = DeviceRing(context, StreamDevice(NUM_BLOCKS, StateLayout(MAX_ROWS, 16)))
    place.adopt(ring)
    return ring


def beats(place: Workplace) -> int:
    return place.board.pulse(place.names.index("gpu-0")).beats


def test_while_samplers_have_the_step_the_loop_is_well(place: Workplace) -> None:
    ring = ring_in(place)
    place.logits.begin(1)
    place.logits.publish(1)
    before = beats(place)
    assert not ring._is_done(1, 0)
    assert beats(place) == before + 1


def test_while_the_device_has_the_step_it_stands_still(place: Workplace) -> None:
    ring = ring_in(place)
    before = beats(place)
    assert not ring._is_done(1, 0)
    assert beats(place) == before


def test_a_device_that_failed_is_found_out_while_it_is_waited_for(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_in(place)

    def failed() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with monkeypatch.context() as patch:
        patch.setattr(ring._engine, "is_quiet", failed)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            ring._is_done(1, 0)
