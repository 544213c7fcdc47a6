"""How fast do records and hand-offs cross between two processes?

    python -m tools.bench_ring [--seconds 1.0] [--json]

Records: one process pushes 16-byte records through the native ring, one per call or in batches;
another pops what is there and checks it; both spin while the ring is full or empty. Hand-off: one
process publishes a step in the logit ring, the other answers in the sampled ring; half a round
trip is one hand-off. *Spinning* waits spin 50 µs before they sleep, the default from 8 CPUs on;
*sleeping* waits go to the kernel at once and come 1 ms apart, so that both sides truly sleep.
The figures need two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from hybridgen.ipc.logit_ring import POISON, LogitRing
from hybridgen.ipc.record_ring import RecordRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.segment import Segment, SegmentKind

INSTANCE = 1
RECORD = struct.Struct("=QQ")
NUM_RECORDS, MAX_POP = 1 << 14, 1024
DEPTH, MAX_ROWS, VOCAB_SIZE = 2, 1, 16
SPIN_US, PAUSE_S, LIMIT_US = 50, 0.001, 5_000_000
WAIT_US = 500  # of either side of the record ring, spinning all the time
AIM_RECORDS_PER_S, AIM_SPINNING_US, AIM_SLEEPING_US = 1_000_000, 100, 1_000


class Figure(NamedTuple):
    """One measured line."""

    what: str
    value: float
    unit: str
    aim: str
    is_reached: bool


def main() -> int:
    """Measure everything and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        role, *numbers = options.child
        CHILDREN[role](*map(int, numbers))
        return 0
    figures = [
        *(measure_records(batch, options.seconds) for batch in (1, 64, 1024)),
        *measure_hand_off("spinning", SPIN_US, 0.0, options.seconds, AIM_SPINNING_US),
        *measure_hand_off("sleeping", 0, PAUSE_S, options.seconds, AIM_SLEEPING_US),
    ]
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
    else:
        print_table(figures)
    return 0


def print_table(figures: list[Figure]) -> None:
    """The figures as a Markdown table."""
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}\n")
    print("| what | value | unit | aim | reached |\n|---|---:|---|---|---|")
    for what, value, unit, aim, is_reached in figures:
        text = f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
        print(f"| {what} | {text} | {unit} | {aim} | {'yes' if is_reached else 'no'} |")


def measure_records(batch: int, seconds: float) -> Figure:
    """Records per second through the ring, ``batch`` records per call."""
    geometry = RecordRing.make_geometry(NUM_RECORDS, RECORD.size)
    size_bytes = RecordRing.size_bytes(NUM_RECORDS, RECORD.size)
    with Segment.create(SegmentKind.RING, size_bytes, geometry, INSTANCE) as segment:
        ring = RecordRing(segment.buf)
        with running_child("consume", [segment.fd], MAX_POP) as consumer:
            wait_for_child(consumer)
            records = RECORD.pack(7, 7) * batch
            started_s = time.perf_counter()
            num_pushed = push_for(ring, records, batch, started_s + seconds)
            while ring.num_filled:
                ring.wait_room(WAIT_US, WAIT_US)
            elapsed_s = time.perf_counter() - started_s
            ring.push_all(RECORD.pack(0, 0))  # end
            check_end(consumer)
    what = f"records of {RECORD.size} B, {batch} per push"
    rate = num_pushed / elapsed_s
    return Figure(what, rate, "1/s", f"≥ {AIM_RECORDS_PER_S:,}", rate >= AIM_RECORDS_PER_S)


def push_for(ring: RecordRing, records: bytes, batch: int, until_s: float) -> int:
    """Push whole batches until the time is over; how many records went in."""
    num_pushed = 0
    push = ring.push
    while time.perf_counter() < until_s:
        for _ in range(256):
            count = push(records)
            num_pushed += count
            if count < batch:
                ring.wait_room(WAIT_US, WAIT_US)
    return num_pushed


def consume(fd: int, max_records: int) -> None:
    """Child: pop and check until the end record."""
    ring = RecordRing(Segment.attach(fd, SegmentKind.RING, INSTANCE).buf)
    good, end = RECORD.pack(7, 7), RECORD.pack(0, 0)
    say_ready()
    while True:
        records = ring.pop(max_records)
        if not records:
            ring.wait_filled(WAIT_US, WAIT_US)
        is_end = records.endswith(end)
        body = records[: -len(end)] if is_end else records
        if body != good * (len(body) // len(good)):
            raise SystemExit("a record is torn")
        if is_end:
            return


def measure_hand_off(
    name: str, spin_us: int, pause_s: float, seconds: float, aim_us: int
) -> list[Figure]:
    """Half round trips publish → done between two processes, in µs: p50 and p99."""
    with ExitStack() as stack:
        logits = stack.enter_context(create_logits())
        sampled = stack.enter_context(create_sampled())
        fds = [logits.fd, sampled.fd]
        child = stack.enter_context(running_child("sample", fds, spin_us))
        wait_for_child(child)
        ring, answers = LogitRing(logits.buf), SampledRing(sampled.buf)
        halves_us = sorted(hand_offs_us(ring, answers, spin_us, pause_s, seconds))
        ring.poison()
        check_end(child)
        p50, p99 = (halves_us[int(len(halves_us) * share)] for share in (0.5, 0.99))
    return [
        Figure(f"hand-off {name}, p50 of {len(halves_us)}", p50, "µs", "", True),
        Figure(f"hand-off {name}, p99", p99, "µs", f"≤ {aim_us}", p99 <= aim_us),
    ]


def hand_offs_us(
    ring: LogitRing, answers: SampledRing, spin_us: int, pause_s: float, seconds: float
) -> Iterator[float]:
    """Half of each round trip."""
    step, until_s = 0, time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        if pause_s:
            time.sleep(pause_s)
        step += 1
        ring.write_rows(step, [])
        started_ns = time.perf_counter_ns()
        ring.publish(step)
        if not answers.wait_done(step, 0, spin_us, LIMIT_US):
            raise SystemExit("no answer")
        yield (time.perf_counter_ns() - started_ns) / 2000


def sample(logits_fd: int, sampled_fd: int, spin_us: int) -> None:
    """Child: answer each step."""
    ring = LogitRing(Segment.attach(logits_fd, SegmentKind.LOGITS, INSTANCE).buf)
    answers = SampledRing(Segment.attach(sampled_fd, SegmentKind.SAMPLED, INSTANCE).buf)
    step = 0
    say_ready()
    while (latest := ring.wait_published(step, spin_us, LIMIT_US)) != POISON:
        if latest != step:
            answers.mark_done(latest, 0)
            step = latest


CHILDREN: dict[str, Callable[..., None]] = {"consume": consume, "sample": sample}


def create_logits() -> Segment:
    """A small logit ring."""
    size_bytes = LogitRing.size_bytes(DEPTH, MAX_ROWS, VOCAB_SIZE)
    geometry = LogitRing.make_geometry(DEPTH, MAX_ROWS, VOCAB_SIZE, 1)
    return Segment.create(SegmentKind.LOGITS, size_bytes, geometry, INSTANCE)


def create_sampled() -> Segment:
    """The sampled ring beside it."""
    size_bytes = SampledRing.size_bytes(DEPTH, MAX_ROWS, 1)
    geometry = SampledRing.make_geometry(DEPTH, MAX_ROWS, 1)
    return Segment.create(SegmentKind.SAMPLED, size_bytes, geometry, INSTANCE)


@contextmanager
def running_child(role: str, fds: list[int], number: int) -> Iterator[subprocess.Popen[bytes]]:
    """This module again, in one of its child roles."""
    arguments = [sys.executable, "-m", "tools.bench_ring", "--child", role]
    arguments += [str(argument) for argument in (*fds, number)]
    with subprocess.Popen(arguments, pass_fds=fds, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def say_ready() -> None:
    """Child: tell the parent that the measurement can begin."""
    print("ready", flush=True)


def wait_for_child(process: subprocess.Popen[bytes]) -> None:
    """Parent: wait for that."""
    if process.stdout is None or process.stdout.readline() != b"ready\n":
        raise SystemExit("the child did not start")


def check_end(process: subprocess.Popen[bytes]) -> None:
    """Parent: the child must have found everything right."""
    if process.wait(10) != 0:
        raise SystemExit(f"the child ended with {process.returncode}")


if __name__ == "__main__":
    raise SystemExit(main())
