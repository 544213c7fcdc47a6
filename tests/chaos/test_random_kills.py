"""Random kills of random roles under load: every text whole, everything given back at the end.

``HYBRIDGEN_CHAOS_SECONDS`` (default 120) and ``HYBRIDGEN_CHAOS_SEED`` (default 1, printed on
failure) choose length and course.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from hybridgen import Client, SamplingParams
from hybridgen.errors import HybridGenError, PoisonRequest
from tests.support.eventually import eventually
from tests.support.running_tree import RunningTree, running_tree

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("HYBRIDGEN_CHAOS_SECONDS", "120"))
SEED = int(os.environ.get("HYBRIDGEN_CHAOS_SEED", "1"))
NUM_STREAMS = 50
KILL_EVERY_S = 2.0
ROLES = (
    *("sampler-0", "sampler-1", "tokenizer-0", "detokenizer-0", "detokenizer-1"),
    *("gpu-0", "coscheduler-0"),
)


class Stream(threading.Thread):
    """One caller that asks the same question again and again and compares the answers."""

    def __init__(self, client: Client, number: int, stop_at_s: float) -> None:
        super().__init__(name=f"stream-{number}")
        self.client = client
        self.number = number
        self.stop_at_s = stop_at_s
        self.answers: set[tuple[int, ...]] = set()
        self.num_answers = 0
        self.num_poisoned = 0
        self.errors: list[str] = []

    def run(self) -> None:
        params = SamplingParams(
            temperature=0.9, seed=self.number, max_tokens=120, min_tokens=120, top_p=0.95
        )
        while time.monotonic() < self.stop_at_s:
            try:
                output = self.client.generate(f"Question {self.number}?", params)
            except PoisonRequest:
                self.num_poisoned += 1  # killed twice before its first token: allowed, and said
            except HybridGenError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            else:
                self.num_answers += 1
                self.answers.add(tuple(output.token_ids))


def kill_now_and_then(tree: RunningTree, chance: random.Random, stop_at_s: float) -> int:
    """Kill a random role at fixed intervals until the time is over; how many were killed."""
    num_kills = 0
    next_s = time.monotonic() + KILL_EVERY_S
    pause = threading.Event()
    while next_s < stop_at_s:
        pause.wait(max(0.0, next_s - time.monotonic()))
        next_s += KILL_EVERY_S
        role = chance.choice(ROLES)
        if tree.is_up(role):
            tree.kill(role)
            num_kills += 1
    return num_kills


@pytest.mark.timeout(SECONDS + 180)
def test_texts_survive_random_kills_of_random_roles() -> None:
    print(f"seed {SEED}, {SECONDS} s")
    any_number = 100_000
    with running_tree(
        model="mock",
        mock_step_us=5000,
        num_samplers=2,
        num_detokenizers=2,
        num_cpu_threads=2,
        pool_restart_limit=any_number,
        gpu_restart_limit=any_number,
        coscheduler_restart_limit=any_number,
    ) as tree:
        baseline = tree.client.health()
        stop_at_s = time.monotonic() + SECONDS
        streams = [Stream(tree.client, number, stop_at_s - 10) for number in range(NUM_STREAMS)]
        for stream in streams:
            stream.start()
        num_kills = kill_now_and_then(tree, random.Random(SEED), stop_at_s - 12)
        for stream in streams:
            stream.join(60)
        print(
            f"{num_kills} kills, {sum(s.num_answers for s in streams)} answers, "
            f"{sum(s.num_poisoned for s in streams)} poisoned"
        )
        assert not [stream.name for stream in streams if stream.is_alive()]
        assert [error for stream in streams for error in stream.errors] == []
        assert [s.name for s in streams if len(s.answers) > 1] == []
        assert all(stream.num_answers for stream in streams)

        def is_baseline() -> bool:
            now = tree.client.health()
            return (
                now.num_free_slots == baseline.num_free_slots
                and now.num_free_blocks == baseline.num_free_blocks
            )

        eventually(is_baseline, 30.0)
