"""No sampler: not ready; none to come: new work is refused."""

from __future__ import annotations

from tests.support.scheduler_stage import SchedulerStage


def test_without_a_sampler_the_tree_is_not_ready_but_waits_for_one() -> None:
    stage = SchedulerStage()
    stage.scheduler.note_board(still=[], num_samplers=0)
    assert stage.scheduler.health().status == "not ready: no sampler"
    stage.died("sampler")
    stage.submit()
    assert stage.codes() == []


def test_when_none_is_left_new_work_is_refused_until_one_is_back() -> None:
    stage = SchedulerStage()
    stage.died("sampler", is_final=True)
    stage.submit()
    assert stage.codes() == []  # a pool that goes on with fewer
    stage.scheduler.note_board(still=[], num_samplers=0)
    stage.submit()
    assert stage.codes() == ["restart_budget_spent"]
    stage.scheduler.note_board(still=[], num_samplers=1)
    stage.scheduler.note_board(still=[], num_samplers=0)
    stage.submit()
    assert stage.codes() == []
