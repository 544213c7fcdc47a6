"""Native readers over memory that is damaged while they read: ``python -m … <seed> <rounds>``.

A process of its own, since what it looks for is a process that ends by a signal. Prints what
happened as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hybridgen.ipc import _native as _native_ipc
from hybridgen.ipc.header import RECORDS_OFFSET
from hybridgen.ipc.logit_ring import Cut, CutState, RowHas
from hybridgen.ipc.record_ring import RecordRing
from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.ipc.slot_table import SLOT_BYTES
from hybridgen.request import Grammar, SamplingParams
from hybridgen.sampling import _native
from tests.sampling.step_fixture import VOCAB, Segments
from tests.support.damage import Damager, damage

T = TypeVar("T")

DEPTH = 3
PARAMETERS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    SamplingParams(temperature=1.2, top_k=40, min_p=0.05, logprobs=5, seed=2),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, logit_bias={5: 3.0}, seed=3),
    SamplingParams(min_tokens=5, stop_token_ids=[7, 9], top_p=0.5, seed=4),
    SamplingParams(grammar=Grammar("regex", "[a-z]+"), seed=5),
]


class Stage:
    """Segments, a lane over them and their good state, to go back to."""

    def __init__(self, rng: random.Random, cut_capacity: int) -> None:
        self.segments = Segments(cut_capacity=cut_capacity)
        self._rows = np.asarray(np.random.default_rng(1).normal(0, 3, (6, VOCAB)), np.float32)
        self._rng = rng
        self.counts: Counter[str] = Counter()
        s = self.segments
        self.views = [s.logits, s.sampled, s.slots, s.tokens, s.logprobs]
        for slot, params in enumerate(PARAMETERS):
            s.open_slot(slot, range(slot + 2), params)
        for step in range(1, DEPTH + 1):
            self._publish(step)
        self._good = [bytes(view.buf) for view in self.views]

    def _publish(self, step: int) -> None:
        rows = [self.segments.row(slot) for slot in range(len(PARAMETERS))]
        if self.segments.logits.cut_capacity:
            rows = [row._replace(flags=int(RowHas.CUT)) for row in rows]
            cuts = [self._cut(step) for _ in rows]
            self.segments.publish_cuts(step, rows, cuts)
            self.segments.complete(step, self._rows)
        else:
            self.segments.publish(step, rows, self._rows)

    def _cut(self, step: int) -> Cut:
        ids = sorted(self._rng.sample(range(VOCAB), 48))
        values = [float(i % 7) for i in ids]
        scale = 1.4426950408889634 / 0.8 if step % 2 else 0.0
        return Cut(CutState.CANDIDATES, 3, 6.0, 0.0, scale, 50.0, step, values, ids)

    def restore(self) -> None:
        for view, good in zip(self.views, self._good, strict=True):
            memoryview(view.buf)[:] = good

    def regions(self) -> list[memoryview]:
        """What a lane reads but the answers: headers, words of the ring, slots, rows."""
        s = self.segments
        views = [memoryview(view.buf) for view in (s.logits, s.slots, s.tokens, s.logprobs)]
        ring = views[0][RECORDS_OFFSET:]
        slots = [views[1][RECORDS_OFFSET + SLOT_BYTES * i :][:320] for i in range(len(PARAMETERS))]
        return [view[:256] for view in views] + [ring[:1024], ring, *slots, views[2], views[3]]

    def open_lane(self) -> _native.Lane | None:
        return self.attempt(_native.Lane, *[view.buf for view in self.views], 0)

    def attempt(self, call: Callable[..., T], *arguments: object) -> T | None:
        """Count how a native call went; a rejection is a ValueError."""
        self.counts["calls"] += 1
        try:
            return call(*arguments)
        except ValueError:
            self.counts["rejected"] += 1
            return None

    def read(self, lane: _native.Lane) -> None:
        """Everything that a sampler calls."""
        for seen in range(DEPTH):
            self.attempt(lane.next_step, seen, 0, 1000)
            for slot, epoch, position in self.attempt(lane.due_masks, seen + 1) or ():
                self.attempt(lane.set_mask, slot, epoch, position, b"\xff" * 38)
            self.attempt(lane.await_rows, seen + 1, 0, 0)
            self.attempt(lane.rest_of_step, seen + 1)

    def check_results(self) -> None:
        """Ids that samplers answered; nobody damages these."""
        for step in range(1, DEPTH + 1):
            for token_id, flags in self.segments.sampled.results(step, 6):
                has_token = not flags & (RowFlag.STALE | RowFlag.NO_TOKEN | 1 << 31)
                self.counts["outside"] += has_token and not 0 <= token_id < VOCAB


def read_while_damaged(stage: Stage, seed: int) -> None:
    """A lane that was opened over good memory, which is damaged while it works."""
    stage.restore()
    lane = stage.open_lane()
    assert lane is not None
    with Damager(seed, stage.regions()):
        for _ in range(4):
            stage.read(lane)
            stage.check_results()
            stage.restore()


def damage_and_open(stage: Stage, rng: random.Random) -> None:
    """Memory that was damaged before a lane opens it: headers above all."""
    stage.restore()
    for view in stage.views:
        for _ in range(rng.randrange(3)):
            damage(rng, memoryview(view.buf)[:192] if rng.random() < 0.7 else view.buf)
    lane = stage.open_lane()
    if lane is not None:
        stage.read(lane)


def pop_while_damaged(stage: Stage, seed: int) -> None:
    """The record ring: geometry and positions are read anew at each call."""
    ring = RecordRing.in_memory(64, 24)
    stage.attempt(ring.push, bytes(24 * 40))
    with Damager(seed, [memoryview(ring.buf)[64:320]]):
        for _ in range(30):
            stage.attempt(_native_ipc.ring_push, ring.buf, bytes(24 * 3))
            stage.attempt(_native_ipc.ring_pop, ring.buf, 8)


def main(seed: int, num_rounds: int) -> int:
    rng = random.Random(seed)  # a test's course
    sys.setswitchinterval(1e-5)
    stages = [Stage(rng, 0), Stage(rng, 64)]
    started_s = time.monotonic()
    for number in range(num_rounds):
        for stage in stages:
            read_while_damaged(stage, seed + number)
            damage_and_open(stage, rng)
        pop_while_damaged(stages[0], seed + number)
    counts = stages[0].counts + stages[1].counts
    print(json.dumps({"outside": 0, **counts, "elapsed_s": time.monotonic() - started_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
