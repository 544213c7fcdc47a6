"""Random schedules of a whole simulated tree; a failing seed is printed by pytest's id."""

from __future__ import annotations

import random

import pytest

from tests.support.simulated_tree import CLIENT, SimulatedTree


def load(tree: SimulatedTree, num_requests: int, *, max_prompt: int = 20) -> list[bytes]:
    draw = tree.random
    return [
        tree.submit(
            [draw.randrange(1, 97) for _ in range(draw.randrange(1, max_prompt))],
            max_tokens=draw.choice([None, 1, 3, 12]),
            has_stop=draw.random() < 0.3,
            priority=draw.randrange(3),
        )
        for _ in range(num_requests)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_every_request_ends_once_with_the_right_ids(seed: int) -> None:
    tree = SimulatedTree(seed)
    load(tree, 15)
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()
    assert all(asked.is_natural for asked in tree.asked.values())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("num_blocks", [3, 5, 10])
def test_requests_that_fit_alone_finish_in_a_tiny_pool(seed: int, num_blocks: int) -> None:
    tree = SimulatedTree(seed, num_blocks=num_blocks, num_slots=8, max_num_seqs=8)
    load(tree, 12, max_prompt=min(20, num_blocks * 4 - 2))
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()
    errors = [a.finals[0] for a in tree.asked.values() if not a.is_natural]
    assert all(final.error.code == "context_length_exceeded" for final in errors)
    assert len(errors) < len(tree.asked)


@pytest.mark.parametrize("seed", range(8))
def test_repeated_worker_facts_change_nothing(seed: int) -> None:
    tree = SimulatedTree(seed, duplicate_share=0.4, num_blocks=8)
    load(tree, 15)
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()


@pytest.mark.parametrize("seed", range(12))
def test_cancels_in_any_phase_free_everything(seed: int) -> None:
    tree = SimulatedTree(seed, num_blocks=8)
    ids = load(tree, 15)
    for request_id in ids[::2]:
        tree.run(tree.random.randrange(60))
        tree.cancel(request_id)
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("victim", ["tokenizer-0", "detokenizer-1", "gpu-0", "coscheduler"])
def test_a_killed_process_changes_no_text(seed: int, victim: str) -> None:
    tree = SimulatedTree(seed, num_blocks=10)
    load(tree, 15)
    for _ in range(6):
        tree.run(tree.random.randrange(40, 160))
        if victim == "coscheduler":
            tree.kill_coscheduler()
        else:
            tree.kill_worker(victim)
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()
    codes = {a.finals[0].error.code for a in tree.asked.values() if a.finals[0].error}
    assert codes <= {"poison_request"}


@pytest.mark.parametrize("seed", range(20))
def test_chaos_of_kills_cancels_deadlines_and_lost_clients(seed: int) -> None:
    tree = SimulatedTree(seed, num_blocks=9, duplicate_share=0.1)
    draw = random.Random(seed + 1000)
    other = b"client-of-no-use"
    for _ in range(25):
        request_ids = load(tree, draw.randrange(3))
        if draw.random() < 0.2:
            tree.submit([5, 6, 7], client_id=other)
        if draw.random() < 0.2:
            tree.submit([8, 9], timeout_s=draw.choice([0.05, 0.5]))
        tree.run(draw.randrange(80))
        match draw.randrange(8):
            case 0:
                tree.kill_coscheduler()
            case 1:
                tree.kill_worker("gpu-0")
            case 2 | 3:
                tree.kill_worker(draw.choice(["tokenizer-0", "detokenizer-0", "detokenizer-1"]))
            case 4 if request_ids:
                tree.cancel(request_ids[0])
    tree.gone_clients.add(other)
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()
    assert CLIENT not in tree.gone_clients
