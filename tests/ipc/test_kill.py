"""A writer that is killed at any moment leaves nothing torn to be read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.segment import Segment, SegmentKind
from hybridgen.ipc.slot_table import SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from tests.support import record_patterns as patterns
from tests.support.record_patterns import DEPTH, MAX_LEN, MAX_ROWS, NUM_SLOTS, VOCAB_SIZE

ROOT = Path(__file__).parents[2]
WRITER = ROOT / "tests" / "support" / "record_writer.py"
NUM_KILLS = 300
#: Of each passage, of which two turns of the writer have so many.
NUM_KILLS_EACH = int(os.environ.get("NUM_RING_KILLS", "10"))
NUM_PASSAGES = 14
#: At this one and later ones the writer has published a step.
PUBLISHED = 5
NUM_SPARE = 3
MAX_LIFE_S = 0.02
STUCK_AFTER_S = 20.0


class Watcher:
    """Reads whatever is visible and counts what it found, whole or torn."""

    def __init__(self, segments: list[Segment]) -> None:
        logits, asked, sampled, table, tokens = (segment.buf for segment in segments)
        self.logits, self.asked = LogitRing(logits), LogitRing(asked)
        self.sampled, self.table = SampledRing(sampled), SlotTable(table)
        self.tokens = TokenStore(tokens)
        self.num_whole: Counter[str] = Counter()
        self.torn: list[str] = []
        self.num_tokens = 0
        self.asked.publish(1)

    def look(self) -> None:
        """Read every kind of record once."""
        latest = self.logits.latest
        for step in (latest, latest - 1):
            if step > 0:
                self._count(f"step {step}", patterns.read_step(self.logits, step))
        for slot in range(NUM_SLOTS):
            self._count(f"slot {slot}", patterns.read_slot(self.table, slot))
        self._look_at_tokens()
        self._look_at_answer()

    def _look_at_tokens(self) -> None:
        generated = self.table.load(0, SlotWord.GENERATED)
        # The row is used as a ring here; its older half cannot be overwritten meanwhile.
        for index in range(max(self.num_tokens, generated - MAX_LEN // 2), generated):
            token = self.tokens.read(0, index % MAX_LEN, index % MAX_LEN + 1)[0]
            is_late = self.table.load(0, SlotWord.GENERATED) >= index + MAX_LEN
            self._count(f"token {index}", None if is_late else token == patterns.token_at(index))
        self.num_tokens = generated

    def _look_at_answer(self) -> None:
        """As the gpu process: take the answer, then ask for the next step."""
        step = self.asked.latest
        if not self.sampled.wait_done(step, 0, 0, 0):
            return
        first = step * MAX_ROWS
        expected = [(patterns.token_at(first + row) - 2**30, row) for row in range(MAX_ROWS)]
        self._count(f"answer {step}", self.sampled.results(step, MAX_ROWS) == expected)
        self.asked.publish(step + 1)

    def _count(self, what: str, is_whole: bool | None) -> None:
        if is_whole:
            self.num_whole[what.split(maxsplit=1)[0]] += 1
        elif is_whole is False:
            self.torn.append(what)

    def progress(self) -> tuple[int, int]:
        """Grows while a writer works."""
        return self.logits.latest, self.table.load(0, SlotWord.GENERATED)


@pytest.fixture
def segments() -> Iterator[list[Segment]]:
    ring = LogitRing.make_geometry(DEPTH, MAX_ROWS, VOCAB_SIZE, 1)
    ring_bytes = LogitRing.size_bytes(DEPTH, MAX_ROWS, VOCAB_SIZE)
    plans = [
        (SegmentKind.LOGITS, ring_bytes, ring),
        (SegmentKind.LOGITS, ring_bytes, ring),
        (
            SegmentKind.SAMPLED,
            SampledRing.size_bytes(DEPTH, MAX_ROWS, 1),
            SampledRing.make_geometry(DEPTH, MAX_ROWS, 1),
        ),
        (
            SegmentKind.SLOTS,
            SlotTable.size_bytes(NUM_SLOTS),
            SlotTable.make_geometry(NUM_SLOTS, MAX_LEN),
        ),
        (
            SegmentKind.TOKENS,
            TokenStore.size_bytes(NUM_SLOTS, MAX_LEN),
            TokenStore.make_geometry(NUM_SLOTS, MAX_LEN),
        ),
    ]
    with ExitStack() as stack:
        yield [stack.enter_context(Segment.create(*plan, instance=1)) for plan in plans]


def start_writer(stack: ExitStack, fds: list[int], *mode: str) -> subprocess.Popen[bytes]:
    site = Path(msgspec.__file__).parents[1]
    arguments = [sys.executable, "-S", "-E", str(WRITER), f"{ROOT}:{site}", *mode, *map(str, fds)]
    writer = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=fds
    )
    stack.enter_context(writer)
    stack.callback(writer.kill)
    return writer


def kill_at_a_random_moment(
    writer: subprocess.Popen[bytes], watcher: Watcher, dice: random.Random
) -> None:
    assert writer.stdin is not None
    before = watcher.progress()
    writer.stdin.write(b"g")
    writer.stdin.flush()
    stuck_at_s = time.monotonic() + STUCK_AFTER_S
    while watcher.progress() == before:
        assert time.monotonic() < stuck_at_s, "a replacement could not carry on"
    dies_at_s = time.monotonic() + dice.uniform(0.0, MAX_LIFE_S)
    while time.monotonic() < dies_at_s:
        watcher.look()
    writer.kill()
    watcher.look()
    writer.wait(10)
    watcher.look()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_record_is_torn_over_300_kills_of_its_writer(segments: list[Segment]) -> None:
    seed = int(os.environ.get("HYBRIDGEN_TEST_SEED", "1"))
    dice = random.Random(seed)
    watcher = Watcher(segments)
    fds = [segment.fd for segment in segments]
    with ExitStack() as stack:
        spare = deque(start_writer(stack, fds) for _ in range(NUM_SPARE))
        for kill in range(NUM_KILLS):
            kill_at_a_random_moment(spare.popleft(), watcher, dice)
            if kill < NUM_KILLS - NUM_SPARE:
                spare.append(start_writer(stack, fds))
    assert watcher.torn == [], f"HYBRIDGEN_TEST_SEED={seed}"
    seen = {kind: watcher.num_whole[kind] for kind in ("step", "slot", "token", "answer")}
    assert min(seen.values()) > NUM_KILLS // 10, seen


@pytest.mark.slow
@pytest.mark.timeout(60 + NUM_KILLS_EACH)
def test_nothing_is_torn_or_stuck_wherever_a_commit_is_cut_off(segments: list[Segment]) -> None:
    watcher = Watcher(segments)
    fds = [segment.fd for segment in segments]
    with ExitStack() as stack:
        writer = start_writer(stack, fds, "each")
        assert writer.stdin is not None
        assert writer.stdout is not None
        for kill in range(NUM_KILLS_EACH * NUM_PASSAGES):
            passage = 1 + kill % NUM_PASSAGES
            latest = watcher.logits.latest
            writer.stdin.write(b"%d\n" % passage)
            writer.stdin.flush()
            assert int(writer.stdout.readline()) == -signal.SIGKILL
            watcher.look()
            is_published = watcher.logits.latest > latest
            assert is_published == (passage >= PUBLISHED), passage
    assert watcher.torn == []
    assert watcher.num_whole["answer"] >= NUM_KILLS_EACH
