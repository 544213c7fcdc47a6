"""Requests with the same beginning: step by step, and in a tree whose blocks know their tokens."""

from __future__ import annotations

import pytest

from hybridgen.messages import JoinBatch, RowProgress, SlotEvent, StepReport
from hybridgen.request import IdsPrompt
from tests.support.scheduler_stage import SchedulerStage
from tests.support.simulated_tree import SimulatedTree

PROMPT = list(range(1, 90))
BLOCK = 16


class Prompts(SchedulerStage):
    """Two slots and more of a coscheduler that sees token ids."""

    def __init__(self, **options: object) -> None:
        super().__init__(has_tokens=True, **options)

    def ask(self, ids: list[int]) -> bytes:
        name = self.submit(IdsPrompt(ids), max_tokens=20)
        self.encode_all_ids()
        return name

    def joins(self) -> list[tuple[int, int, list[int]]]:
        return [(join.slot, join.num_cached, join.blocks) for join in self.pop(JoinBatch)]

    def prefilled(self, slot: int, epoch: int = 1) -> None:
        self.fact(StepReport(step=1, prefilled=[SlotEvent(slot, epoch)]))

    def advanced(self, slot: int, num_tokens: int) -> None:
        self.fact(StepReport(step=1, advanced=[RowProgress(slot, 1, num_tokens)]))


def test_siblings_follow_the_first_and_share_all_but_what_holds_the_last_token() -> None:
    stage = Prompts(num_slots=4, num_blocks=64)
    for _ in range(3):
        stage.ask(PROMPT[:65])
    ((slot, num_cached, first),) = stage.joins()
    assert (slot, num_cached) == (0, 0)
    stage.prefilled(0)
    joins = stage.joins()
    assert [(slot, num_cached) for slot, num_cached, _ in joins] == [(1, 64), (2, 64)]
    for _, _, blocks in joins:
        assert blocks[:4] == first[:4]
        assert not set(blocks[4:]) & set(first)


def test_a_whole_number_of_blocks_leaves_the_last_one_to_compute() -> None:
    stage = Prompts()
    stage.ask(PROMPT[:64])
    stage.prefilled(0)
    stage.joins()
    stage.ask(PROMPT[:64])
    assert stage.joins()[0][1] == 48


def test_followers_go_as_soon_as_the_piece_that_they_need_is_reported() -> None:
    stage = Prompts(num_blocks=64)
    stage.ask(PROMPT[:80])
    stage.ask(PROMPT[:32] + [99] * 20)
    stage.joins()
    stage.advanced(0, 31)
    assert stage.joins() == []
    stage.advanced(0, 48)
    assert [(slot, num_cached) for slot, num_cached, _ in stage.joins()] == [(1, 32)]


def test_others_overtake_followers() -> None:
    stage = Prompts(num_blocks=64)
    stage.ask(PROMPT[:64])
    stage.ask(PROMPT[:64])
    stage.ask([7] * 40)
    assert [slot for slot, _, _ in stage.joins()] == [0, 2]


def test_a_leader_that_is_cancelled_is_followed_by_the_next() -> None:
    stage = Prompts(num_slots=4, num_blocks=64)
    first = stage.ask(PROMPT[:65])
    stage.ask(PROMPT[:65])
    stage.ask(PROMPT[:65])
    stage.joins()
    stage.advanced(0, 32)
    stage.cancel(first)
    assert [(slot, num_cached) for slot, num_cached, _ in stage.joins()] == [(1, 32)]
    stage.prefilled(1)
    assert [(slot, num_cached) for slot, num_cached, _ in stage.joins()] == [(2, 64)]


def test_a_follower_that_is_cancelled_is_forgotten() -> None:
    stage = Prompts(num_blocks=64)
    stage.ask(PROMPT[:65])
    second = stage.ask(PROMPT[:65])
    stage.joins()
    stage.cancel(second)
    stage.prefilled(0)
    assert stage.joins() == []


def test_nothing_outlives_the_gpu_process_that_computed_it() -> None:
    stage = Prompts(num_blocks=64)
    stage.ask(PROMPT[:65])
    stage.ask(PROMPT[:65])
    stage.prefilled(0)
    stage.joins()
    stage.died("gpu", 1)
    stage.attach_gpu(2, [])
    assert [(slot, num_cached) for slot, num_cached, _ in stage.joins()] == [(0, 0)]


def test_too_little_in_common_is_neither_shared_nor_waited_for() -> None:
    stage = Prompts(num_blocks=64, least_shared_tokens=40)
    stage.ask(PROMPT[:32] + [90] * 10)
    stage.ask(PROMPT[:32] + [91] * 10)
    assert [num_cached for _, num_cached, _ in stage.joins()] == [0, 0]
    stage.prefilled(0)
    stage.ask(PROMPT[:32] + [92] * 10)
    assert [num_cached for _, num_cached, _ in stage.joins()] == [0]


def test_without_prefix_caching_each_computes_its_own() -> None:
    stage = Prompts(num_blocks=64, enable_prefix_caching=False)
    stage.ask(PROMPT[:65])
    stage.ask(PROMPT[:65])
    assert [num_cached for _, num_cached, _ in stage.joins()] == [0, 0]


def test_hits_are_counted_and_told_to_the_client() -> None:
    stage = Prompts(num_blocks=64)
    stage.ask(PROMPT[:65])
    stage.prefilled(0)
    second = stage.ask(PROMPT[:65])
    counters = stage.scheduler.board_counters()
    wanted = ("looked_up_tokens", "prefix_hits", "prefix_hit_tokens")
    assert [counters[name] for name in wanted] == [130, 1, 64]
    stage.cancel(second)
    stage.advance(1.0)
    (final,) = stage.finals()
    assert final.num_cached_tokens == 64


# --- in a simulated tree ------------------------------------------------------------------------


def load(tree: SimulatedTree, num_requests: int) -> list[bytes]:
    """Prompts of a few families, often twice the same."""
    draw = tree.random
    stems = [[11, 12, 13, 14, 15, 16, 17, 18], [11, 12, 13, 14, 35, 36], []]
    asked = []
    for _ in range(num_requests):
        stem = draw.choice(stems)
        tail = [draw.randrange(40, 43) for _ in range(draw.randrange(1, 8))]
        for _ in range(draw.choice([1, 1, 3])):
            asked.append(tree.submit(stem + tail, max_tokens=draw.choice([None, 1, 4, 12])))
    return asked


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("num_blocks", [10, 40])
def test_texts_are_right_and_everything_comes_back(seed: int, num_blocks: int) -> None:
    tree = SimulatedTree(seed, num_blocks=num_blocks, num_slots=8, max_num_seqs=6)
    load(tree, 12)
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()
    assert tree.gpu.num_cached_tokens > 0


@pytest.mark.parametrize("seed", range(24))
def test_chaos_never_shows_in_a_shared_block(seed: int) -> None:
    tree = SimulatedTree(seed, num_blocks=12, num_slots=8, max_num_seqs=6, duplicate_share=0.1)
    draw = tree.random
    for _ in range(20):
        asked = load(tree, draw.randrange(3))
        tree.run(draw.randrange(80))
        match draw.randrange(8):
            case 0:
                tree.kill_coscheduler()
            case 1:
                tree.kill_worker("gpu-0")
            case 2:
                tree.kill_worker(draw.choice(["tokenizer-0", "detokenizer-0", "detokenizer-1"]))
            case 3 | 4 | 5 if asked:
                tree.cancel(asked[0])
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_the_next_turn_finds_the_answer_too_but_for_its_last_token(max_tokens: int) -> None:
    tree = SimulatedTree(1, num_blocks=40)
    first = tree.asked[tree.submit([21, 22, 23], max_tokens=max_tokens)]
    tree.run_until_idle()
    known = [21, 22, 23, *first.ids]
    tree.submit([*known, 50, 51, 52, 53], max_tokens=3)
    tree.run_until_idle()
    tree.check_ended()
    assert tree.gpu.num_cached_tokens == (len(known) - 1) // 4 * 4


def test_eight_of_one_prompt_cost_about_one_prefill() -> None:
    costs = {}
    for enabled in (True, False):
        tree = SimulatedTree(
            3, num_blocks=100, num_slots=8, max_num_seqs=8, enable_prefix_caching=enabled
        )
        for _ in range(8):
            tree.submit(PROMPT[:32], max_tokens=2)
        tree.run_until_idle()
        tree.check_ended()
        costs[enabled] = tree.gpu.num_prefilled_tokens
    assert costs == {True: 32 + 7 * 4, False: 8 * 32}
