"""How much prefill goes beside a decode step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.scheduler.prefill_budget import (
    CROWDED_PIECES,
    CROWDED_TOKENS_PER_ROW,
    LEAST_PIECE,
    LEAST_TOKENS,
    NUM_GOOD_PIECES,
    WHOLE_TOKENS,
    PrefillBudget,
)

WHOLE = 2048


def measured(budget_ms: float, ms_per_piece: float, running: int, waiting: int) -> PrefillBudget:
    budget = PrefillBudget(budget_ms, WHOLE)
    budget.look(running, waiting)
    budget.piece_done(WHOLE, ms_per_piece)
    budget.step_begun()
    budget.step_done()
    return budget


def test_whole_pieces_go_while_nothing_runs():
    budget = measured(1.0, 100.0, 0, 0)
    for _ in range(5):
        assert budget.piece_size() == WHOLE
        budget.piece_begun(WHOLE)


def test_beside_a_step_goes_what_takes_as_long_as_the_budget():
    budget = measured(25.0, 50.0, 100, 512)
    assert budget.piece_size() == 1024
    budget.piece_begun(512)
    assert budget.piece_size() == 512
    budget.piece_begun(200)
    assert budget.piece_size() == 0  # 312 of 1,024: wait for the next step
    budget.step_done()
    assert budget.piece_size() == 1024
    assert budget.lets_step()


def test_after_a_shortage_of_memory_pieces_get_smaller_and_slowly_larger_again():
    budget = measured(1000.0, 50.0, 0, 0)
    for size in (1024, 512, 256, 128, LEAST_PIECE, LEAST_PIECE):
        budget.piece_failed(budget.piece_size())
        assert budget.piece_size() == size
    budget.look(4, 0)
    assert budget.piece_size() == LEAST_PIECE
    budget.look(0, 0)
    for _ in range(NUM_GOOD_PIECES):
        assert budget.piece_size() == LEAST_PIECE
        budget.piece_done(LEAST_PIECE, 1.0)
    assert budget.piece_size() == 2 * LEAST_PIECE
    for _ in range(10 * NUM_GOOD_PIECES):
        budget.piece_done(LEAST_PIECE, 1.0)
    assert budget.piece_size() == WHOLE


def test_a_large_budget_is_spent_in_whole_pieces():
    budget = measured(120.0, 50.0, 100, 512)
    for _ in range(2):
        assert budget.piece_size() == WHOLE
        budget.piece_begun(WHOLE)
    assert budget.piece_size() == 0


def test_a_small_budget_still_gets_somewhere():
    assert measured(1.0, 500.0, 100, 512).piece_size() == LEAST_TOKENS


def test_a_crowd_of_prompts_gets_whole_pieces_before_each_step():
    budget = measured(10.0, 100.0, 8, 100_000)
    budget.step_begun()
    for _ in range(CROWDED_PIECES):
        assert budget.piece_size() == WHOLE
        assert not budget.lets_step()
        budget.piece_begun(WHOLE)
        budget.piece_done(1850, 90.0)  # the next prompt did not fit in
    assert budget.piece_size() == 0
    assert budget.lets_step()
    budget.step_begun()
    assert not budget.lets_step()
    budget.look(100_000 // CROWDED_TOKENS_PER_ROW + 1, 100_000)
    assert budget.lets_step()
    budget.look(8, WHOLE - 1)
    assert budget.lets_step()


def test_first_tokens_are_not_held_back_while_nothing_runs():
    budget = measured(10.0, 100.0, 0, 100_000)
    budget.step_begun()
    assert budget.is_crowded
    assert budget.lets_step()


def test_a_large_budget_gives_a_crowd_more_than_that():
    budget = measured(100.0 * (CROWDED_PIECES + 2), 100.0, 8, 100_000)
    assert budget.tokens_per_step() == (CROWDED_PIECES + 2) * WHOLE


def test_only_an_idle_batch_gets_pieces_larger_than_whole_ones():
    budget = PrefillBudget(50.0, 4 * WHOLE)
    assert budget.piece_size() == 4 * WHOLE
    budget.look(1, 0)
    assert budget.piece_size() == WHOLE


def test_one_slow_piece_hardly_counts_and_small_ones_do_not():
    budget = measured(25.0, 50.0, 100, 512)
    budget.piece_done(WHOLE, 5000.0)
    budget.piece_done(LEAST_TOKENS - 1, 0.001)
    budget.step_done()
    assert 896 <= budget.piece_size() < 1024


@given(
    budget_ms=st.floats(1.0, 1000.0),
    ms_per_piece=st.floats(0.1, 2000.0),
    running=st.integers(1, 512),
    waiting=st.integers(0, 200_000),
    sizes=st.lists(st.floats(0.01, 1.0), max_size=20),
)
def test_what_is_begun_beside_a_step_stays_within_the_budget(
    budget_ms, ms_per_piece, running, waiting, sizes
):
    budget = measured(budget_ms, ms_per_piece, running, waiting)
    num_begun = 0
    for share in sizes:
        most = budget.piece_size()
        assert most % WHOLE_TOKENS == 0 or most < WHOLE_TOKENS
        num_tokens = max(1, int(most * share)) if most else 0
        budget.piece_begun(num_tokens)
        num_begun += num_tokens
    limit = max(LEAST_TOKENS, budget_ms / ms_per_piece * WHOLE * 1.001)
    assert num_begun <= (max(limit, CROWDED_PIECES * WHOLE) if budget.is_crowded else limit)
