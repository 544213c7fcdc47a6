"""A device without memory: rows wait again, fewer join, and what never fits is refused."""

from __future__ import annotations

import pytest

from hybridgen.messages import ErrorInfo, JoinBatch, RetireSlot, SlotEvent, StepReport
from hybridgen.request import FinishReason
from hybridgen.scheduler.overflows import LIMIT_S, MAX_OVERFLOWS
from tests.support.scheduler_stage import SchedulerStage

SAID = ErrorInfo(
    "out_of_device_memory", "the device has no memory", {"value": "9 MiB", "limit": "1 MiB free"}
)


def overflow(stage: SchedulerStage, *rows: SlotEvent) -> None:
    stage.fact(StepReport(step=2, overflowed=list(rows), memory_error=SAID))


def joins(stage: SchedulerStage) -> list[SlotEvent]:
    return [SlotEvent(join.slot, join.epoch) for join in stage.pop(JoinBatch)]


def test_a_prompt_without_memory_waits_again_and_joins_alone() -> None:
    stage = SchedulerStage()
    for _ in range(3):
        stage.submit()
    stage.encode_all()
    first, second, third = joins(stage)
    overflow(stage, first, second)
    assert joins(stage) == []  # the third is being computed
    stage.fact(StepReport(step=3, prefilled=[third]))
    assert joins(stage) == [first]
    stage.fact(StepReport(step=4, prefilled=[first]))
    assert joins(stage) == [second]
    assert stage.scheduler.board_counters()["overflowed"] == 2


def test_a_step_without_memory_halves_the_rows_for_a_while() -> None:
    stage = SchedulerStage(max_num_seqs=4)
    rows = []
    for _ in range(4):
        stage.submit()
        rows.append(stage.run())
    overflow(stage, *rows)
    for number in range(2):
        assert joins(stage) == [rows[number]]
        stage.fact(StepReport(step=3, prefilled=[rows[number]]))
    assert joins(stage) == []
    stage.advance(LIMIT_S)
    assert joins(stage) == [rows[2]]


def test_a_request_that_never_fits_is_refused_with_numbers_and_the_others_go_on() -> None:
    stage = SchedulerStage()
    stage.submit()
    other = stage.run(10)
    name = stage.submit()
    stage.encode_all(100)
    (row,) = joins(stage)
    for _ in range(MAX_OVERFLOWS - 1):
        overflow(stage, row)
        assert joins(stage) == [row]
        assert stage.finals() == []
    overflow(stage, row)
    (final,) = stage.finals()
    assert final.request_id == name
    assert final.error is not None
    assert final.error.code == "out_of_device_memory"
    text = str(final.error.exception())
    assert name.hex() in text
    assert "100 tokens, needing 9 MiB" in text
    assert f"1 MiB free, after {MAX_OVERFLOWS} tries" in text
    assert "--kv-cache-memory" in text
    stage.sampled(other, 5, FinishReason.LENGTH)
    stage.fact(StepReport(step=5, finished=[other]))
    stage.text_finished(other, 5)
    assert stage.codes() == [""]


def test_tokens_in_between_take_the_count_back() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run(10)
    for number in range(2 * MAX_OVERFLOWS):
        stage.sampled(row, number + 1)
        overflow(stage, row)
        assert joins(stage) == [row]
    assert stage.finals() == []


@pytest.mark.parametrize("is_confirmed_first", [True, False])
def test_an_overflow_of_a_row_that_retires_leaves_it_to_the_confirmation(
    is_confirmed_first: bool,
) -> None:
    stage = SchedulerStage(num_blocks=9)
    rows = []
    for priority in (0, 1):
        stage.submit(priority=priority)
        rows.append(stage.run(10))
        stage.starve(rows[-1])
    low, high = rows
    stage.sampled(low, 30)
    stage.starve(high)
    assert stage.pop(RetireSlot) == [RetireSlot(low.slot, low.epoch)]
    if is_confirmed_first:
        stage.fact(StepReport(step=4, retired=[low]))
        overflow(stage, low)
    else:
        overflow(stage, low)
        assert stage.scheduler.health().num_free_blocks == 0
        stage.fact(StepReport(step=4, retired=[low]))
    assert stage.scheduler.board_counters()["overflowed"] == 0
    assert stage.scheduler.health().num_free_blocks > 0
