"""The rings between two real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hybridgen.ipc import _native
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.logit_ring import LogitRing, RowHeader
from hybridgen.ipc.record_ring import RecordRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.segment import Segment, SegmentKind
from tests.support.eventually import eventually

LIMIT_US = 10_000_000
PREAMBLE = """
import struct, sys
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.logit_ring import POISON, LogitRing
from hybridgen.ipc.record_ring import RecordRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.segment import Segment, SegmentKind
fds = [int(text) for text in sys.argv[1:]]
"""
SAMPLER = """
ring = LogitRing(Segment.attach(fds[0], SegmentKind.LOGITS, 5).buf)
sampled = SampledRing(Segment.attach(fds[1], SegmentKind.SAMPLED, 5).buf)
spin_us, step = fds[2], 0
while (latest := ring.wait_published(step, spin_us, 10_000_000)) != POISON:
    while step < latest:
        step += 1
        for row, header in enumerate(ring.rows(step)):
            token = header.position * 10 + int(ring.logits(step)[row * ring.row_floats])
            sampled.write_result(step, row, token)
        sampled.mark_done(step, 0)
"""
CONSUMER = """
ring = RecordRing(Segment.attach(fds[0], SegmentKind.RING, 5).buf)
expected = 0
while expected < 100_000:
    ring.wait_filled(0, 10_000_000)
    records = ring.pop(512)
    numbers = [number for (number,) in struct.iter_unpack("=Q", records)]
    assert numbers == list(range(expected, expected + len(numbers))), (expected, numbers)
    expected += len(numbers)
    ring.wake_producer()
"""
RINGER = "Doorbell(fds[0]).ring(); sys.stdin.read()"


@contextmanager
def child(script: str, fds: list[int], *numbers: int) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, "-c", PREAMBLE + script, *map(str, [*fds, *numbers])]
    with subprocess.Popen(arguments, pass_fds=fds, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("spin_us", [0, 50])
def test_a_sampler_in_another_process_answers_every_step(spin_us: int) -> None:
    depth, max_rows, num_steps = 2, 4, 200
    with (
        Segment.create(
            SegmentKind.LOGITS,
            LogitRing.size_bytes(depth, max_rows, 16),
            LogitRing.make_geometry(depth, max_rows, 16, 1),
            5,
        ) as logits,
        Segment.create(
            SegmentKind.SAMPLED,
            SampledRing.size_bytes(depth, max_rows, 1),
            SampledRing.make_geometry(depth, max_rows, 1),
            5,
        ) as results,
        child(SAMPLER, [logits.fd, results.fd], spin_us) as process,
    ):
        ring, sampled = LogitRing(logits.buf), SampledRing(results.buf)
        for step in range(1, num_steps + 1):
            ring.begin(step)
            for row in range(max_rows):
                ring.logits(step)[row * ring.row_floats] = float(row)
            ring.write_rows(step, [RowHeader(row, 0, 1, step, 0) for row in range(max_rows)])
            ring.publish(step)
            assert sampled.wait_done(step, 0, spin_us, LIMIT_US)
            expected = [(step * 10 + row, 0) for row in range(max_rows)]
            assert sampled.results(step, max_rows) == expected
        ring.poison()
        assert process.wait(10) == 0, "poison ends the wait of another process"


def test_records_cross_in_order_through_full_and_empty_rings() -> None:
    size_bytes, geometry = RecordRing.size_bytes(256, 8), RecordRing.make_geometry(256, 8)
    with (
        Segment.create(SegmentKind.RING, size_bytes, geometry, 5) as segment,
        child(CONSUMER, [segment.fd]) as process,
    ):
        ring, pushed = RecordRing(segment.buf), 0
        while pushed < 100_000:
            ring.wait_room(0, LIMIT_US)
            batch = range(pushed, min(pushed + 300, 100_000))
            pushed += ring.push(b"".join(n.to_bytes(8, sys.byteorder) for n in batch))
            ring.wake_consumer()
        assert process.wait(10) == 0


def test_a_doorbell_rings_across_processes() -> None:
    bell = Doorbell.create()
    with child(RINGER, [bell.fileno()]):
        eventually(bell.clear, 10.0)
    bell.close()


def test_a_sleeper_in_another_process_is_counted_by_wake() -> None:
    script = (
        "from hybridgen.ipc import _native\n"
        "segment = Segment.attach(fds[0], SegmentKind.RING, 5)\n"
        "sys.exit(_native.wait(segment.buf, 128, 0, 0, 10_000_000))\n"
    )
    size_bytes, geometry = RecordRing.size_bytes(2, 8), RecordRing.make_geometry(2, 8)
    with (
        Segment.create(SegmentKind.RING, size_bytes, geometry, 5) as segment,
        child(script, [segment.fd]) as process,
    ):
        eventually(lambda: _native.wake(segment.buf, 128) == 1, 10.0)
        assert process.wait(10) == 0, "woken, and the word is still 0"
