from __future__ import annotations

import pytest

from hybridgen.config import ServerSection
from hybridgen.ipc.board import Role
from hybridgen.launch.restart import (
    RestartBudget,
    RestartPolicy,
    SpentAction,
    restart_policies,
)
from tests.support.fake_clock import FakeClock

POLICY = RestartPolicy(3, 30.0, SpentAction.DEGRADE)


def test_a_process_that_had_worked_is_replaced_soon_however_often() -> None:
    clock = FakeClock()
    budget = RestartBudget(POLICY, clock)
    delays = []
    for _ in range(20):
        delays.append(budget.spend(was_ready=True).delay_s)
        clock.advance(31.0)
    assert delays == [0.1] * 20


def test_the_delay_doubles_up_to_ten_seconds_in_a_crash_loop() -> None:
    budget = RestartBudget(RestartPolicy(100, 1e6, SpentAction.EXIT), FakeClock())
    delays = [budget.spend(was_ready=False).delay_s for _ in range(10)]
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10])
    assert budget.spend(was_ready=True).delay_s == pytest.approx(0.1)


def test_the_budget_is_spent_after_its_restarts() -> None:
    budget = RestartBudget(POLICY, FakeClock())
    decisions = [budget.spend(was_ready=True) for _ in range(4)]
    assert [decision.is_spent for decision in decisions] == [False, False, False, True]


def test_a_spent_budget_tries_again_when_the_oldest_restart_leaves_the_window() -> None:
    clock = FakeClock()
    budget = RestartBudget(POLICY, clock)
    for _ in range(3):
        budget.spend(was_ready=True)
        clock.advance(5.0)
    decision = budget.spend(was_ready=True)
    assert decision.is_spent
    assert decision.delay_s == pytest.approx(15.1)


def test_restarts_outside_the_window_are_forgotten() -> None:
    clock = FakeClock()
    budget = RestartBudget(POLICY, clock)
    for _ in range(3):
        budget.spend(was_ready=True)
    clock.advance(30.2)
    assert not budget.spend(was_ready=True).is_spent


def test_a_limit_of_zero_allows_no_restart() -> None:
    budget = RestartBudget(RestartPolicy(0, 30.0, SpentAction.EXIT), FakeClock())
    assert budget.spend(was_ready=True) == (30.0, True)


def test_a_crash_loop_spawns_at_most_its_budget_per_window() -> None:
    clock = FakeClock()
    budget = RestartBudget(POLICY, clock)
    starts_s = []
    while clock() < 1300.0:
        clock.advance(budget.spend(was_ready=False).delay_s)
        starts_s.append(clock())
    for start_s in starts_s:
        assert sum(start_s <= other_s < start_s + 30.0 for other_s in starts_s) <= 3


def test_policies_take_their_limits_from_the_configuration() -> None:
    policies = restart_policies(ServerSection(pool_restart_limit=7, gpu_restart_limit=8))
    assert policies[Role.SAMPLER] == (7, 30.0, SpentAction.DEGRADE)
    assert policies[Role.GPU] == (8, 300.0, SpentAction.EXIT)
    assert policies[Role.COSCHEDULER] == (3, 60.0, SpentAction.EXIT)
