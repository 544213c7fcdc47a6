"""How long does a sampler take from a published step to its lane's ``done``?

    python -m tools.bench_hand_off [--seconds 2.0] [--json]

This process plays the device: it writes a step's cut, announces the step, gives the sampler a
moment to look for it, stores ``latest``, says of urgent rows that they are there, complete, and
looks at ``done`` until it is there. The sampler is the real worker process and spins, the default
from 8 CPUs on. What the device does is not in these figures. They need two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hybridgen.config import Config, DeviceSection, PoolSection, SchedulerSection
from hybridgen.ipc import _native
from hybridgen.ipc.logit_ring import Cut, CutState, LogitRing, RowHas, RowHeader
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.request import SamplingParams
from hybridgen.sampling import _native as _sampling
from tools.bench_tree import BenchTree

SPIN_US, LIMIT_US = 50, 5_000_000
PAUSE_S = 0.0004  # of a step, in which the sampler starts to look
PROMPT_LEN, MAX_MODEL_LEN = 16, 256
LOG2_E = 1.4426950408889634
SPREAD = 2.5  # of normally distributed logits


class Case(NamedTuple):
    """What the device publishes."""

    name: str
    vocab_size: int
    params: SamplingParams
    num_rows: int = 1
    is_urgent: bool = False  # cuts decide nothing


CASES = [
    Case("512 tokens, greedy", 512, SamplingParams(temperature=0.0)),
    Case("32,000 tokens, greedy", 32_000, SamplingParams(temperature=0.0)),
    Case("32,000 tokens, top-k 40", 32_000, SamplingParams(top_k=40)),
    Case("32,000 tokens, top-p 0.9 at 0.5", 32_000, SamplingParams(temperature=0.5, top_p=0.9)),
    Case("the same, 8 rows", 32_000, SamplingParams(temperature=0.5, top_p=0.9), 8),
    Case("128,256 tokens, an urgent row", 128_256, SamplingParams(temperature=1.0), 1, True),
    Case("the same, top-p 0.9", 128_256, SamplingParams(temperature=1.5, top_p=0.9), 1, True),
]


class Figure(NamedTuple):
    """One measured line, in µs; ``kernel_us`` as the sampler counts it."""

    what: str
    p50_us: float
    p99_us: float
    kernel_us: float
    num_steps: int


def main() -> int:
    """Measure everything and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    figures = [measure(case, options.seconds) for case in CASES]
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
        return 0
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}\n")
    print("| published | done, p50 µs | p99 µs | of it sampling, µs | steps |")
    print("|---|---:|---:|---:|---:|")
    for what, p50_us, p99_us, kernel_us, num_steps in figures:
        print(f"| {what} | {p50_us:.1f} | {p99_us:.1f} | {kernel_us:.1f} | {num_steps:,} |")
    return 0


def measure(case: Case, seconds: float) -> Figure:
    """Steps of one case for so long."""
    config = Config(
        device=DeviceSection(device="cuda"),
        scheduler=SchedulerSection(max_num_seqs=case.num_rows),
        pools=PoolSection(num_samplers=1, spin_us=SPIN_US),
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchTree(config, case.vocab_size, MAX_MODEL_LEN, Path(folder) / "run") as tree,
    ):
        took_us = sorted(hand_offs_us(tree, case, seconds))
        kernel_us = tree.sampling_ns() / 1e3 / len(took_us)
    p50_us, p99_us = (took_us[int(len(took_us) * share)] for share in (0.5, 0.99))
    return Figure(case.name, p50_us, p99_us, kernel_us, len(took_us))


def hand_offs_us(tree: BenchTree, case: Case, seconds: float) -> Iterator[float]:
    """Each step's time from ``latest`` to ``done``."""
    ring = LogitRing(tree.context.segment("logits").buf)
    answers = SampledRing(tree.context.segment("sampled").buf)
    for slot in range(case.num_rows):
        tree.fill(slot, case.params, PROMPT_LEN)
    rows = [
        RowHeader(slot, 0, tree.slots.load(slot, SlotWord.EPOCH), PROMPT_LEN, 0, RowHas.CUT)
        for slot in range(case.num_rows)
    ]
    write_cuts = cut_writer(ring, case)
    if case.is_urgent:
        write_rows(ring, case)
    step, until_s = 0, time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        step += 1
        ring.write_rows(step, rows)
        ring.announce(step)
        time.sleep(PAUSE_S)
        write_cuts(step)
        _native.store(ring.buf, ring.ready_offset(step), step)
        started_ns = time.perf_counter_ns()
        _native.store(ring.buf, ring.latest_offset, step)
        for row in range(case.num_rows if case.is_urgent else 0):
            _native.store(ring.buf, ring.urgent_offset(step, row), step)
        if not answers.wait_done(step, 0, LIMIT_US, LIMIT_US):
            raise SystemExit("no answer")
        yield (time.perf_counter_ns() - started_ns) / 1000
        for slot in range(case.num_rows):  # so that every step asks for the same token
            tree.slots.store(slot, SlotWord.GENERATED, 0)


def cut_writer(ring: LogitRing, case: Case) -> Callable[[int], None]:
    """Writes the cuts of a step as the device does: all bytes of them, every time."""
    cut = make_cut(case, ring.cut_capacity)
    ring.write_cut(0, 0, cut)
    view = memoryview(ring.buf)
    first = ring.cut_offset_of(0)
    record = bytearray(view[first : first + ring.cut_bytes])
    step_at = 32  # hg_cut.step

    def write(step: int) -> None:
        record[step_at : step_at + 8] = step.to_bytes(8, sys.byteorder)
        for row in range(case.num_rows):
            start = ring.cut_offset_of(step) + row * ring.cut_bytes
            view[start : start + ring.cut_bytes] = record

    return write


def write_rows(ring: LogitRing, case: Case) -> None:
    """Complete rows, in every place of the ring."""
    for step in range(ring.depth):
        rows = np.asarray(ring.logits(step)).reshape(ring.max_rows, -1)
        rows[:, : case.vocab_size] = make_logits(case)


def make_logits(case: Case) -> np.ndarray:
    """A row of normally distributed logits."""
    return np.random.default_rng(7).normal(0, SPREAD, case.vocab_size).astype(np.float32)


def make_cut(case: Case, capacity: int) -> Cut:
    """The cut of a row, three eighths full."""
    logits = make_logits(case)
    threshold = np.sort(logits)[-capacity * 3 // 8]
    ids = np.flatnonzero(logits >= threshold)
    temperature = case.params.temperature
    scale = total = 0.0
    if temperature:
        scale = LOG2_E / float(np.float32(temperature))
        total = _sampling.total_weight(logits, float(np.float32(temperature)))
    head = (float(logits.max()), float(threshold), float(np.float32(scale)), total)
    return Cut(CutState.CANDIDATES, -1, *head, 0, logits[ids].tolist(), ids.tolist())


if __name__ == "__main__":
    raise SystemExit(main())
