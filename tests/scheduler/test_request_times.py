"""Where a request's time went, as the coscheduler saw it."""

from __future__ import annotations

import pytest

from hybridgen.errors import Cancelled, PoisonRequest
from hybridgen.messages import CancelRequest, JoinBatch, SlotEvent, StepReport, SubmitRequest
from hybridgen.request import FinishReason, SamplingParams, TextPrompt
from hybridgen.scheduler.counters import Counters
from hybridgen.scheduler.request_record import Ending
from hybridgen.scheduler.request_times import RequestTimes
from tests.support.scheduler_stage import SchedulerStage

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WHOLE = RequestTimes(10.0, 11.0, 13.0, 16.0, 20.0, 25.0)


def test_stages_follow_one_another_without_a_gap() -> None:
    assert WHOLE.stage_seconds() == {"queue": 4.0, "tokenize": 2.0, "prefill": 4.0, "decode": 5.0}
    pairs = sorted(pair for pairs in WHOLE.stages().values() for pair in pairs)
    assert [end for _, end in pairs[:-1]] == [begin for begin, _ in pairs[1:]]
    assert sum(WHOLE.stage_seconds().values()) == WHOLE.total_s


def test_a_stage_that_was_not_gone_through_is_left_out() -> None:
    refused = RequestTimes(arrival_s=1.0, seated_s=2.0, final_s=3.0)
    assert refused.stage_seconds() == {"queue": 1.0}


@pytest.mark.parametrize(
    ("ending", "counter"),
    [
        (Ending(FinishReason.STOP), "ended_stop"),
        (Ending(FinishReason.STOP_STRING), "ended_stop"),
        (Ending(FinishReason.LENGTH), "ended_length"),
        (Ending.of(Cancelled("x")), "cancelled"),
        (Ending.of(PoisonRequest("x")), "ended_error"),
    ],
)
def test_every_ending_has_one_counter(ending: Ending, counter: str) -> None:
    counters = Counters()
    counters.ended(ending)
    totals = counters.totals()
    reasons = ("ended_stop", "ended_length", "cancelled", "ended_error")
    assert totals["finished"] == sum(totals[name] for name in reasons) == totals[counter] == 1
    assert totals["poisoned"] == (counter == "ended_error")


def test_the_coscheduler_notes_each_stage_and_the_trace() -> None:
    stage = SchedulerStage()
    order = SubmitRequest(
        request_id=b"request-00000001",
        prompt=TextPrompt("x"),
        params=SamplingParams(max_tokens=4),
        traceparent=TRACEPARENT,
    )
    stage.client(order)
    stage.clock.advance(1.0)
    stage.encode_all(3)
    (join,) = stage.pop(JoinBatch)
    row = SlotEvent(join.slot, join.epoch)
    stage.clock.advance(2.0)
    stage.fact(StepReport(step=1, prefilled=[row]))
    stage.clock.advance(4.0)
    stage.sampled(row, 4, FinishReason.LENGTH)
    stage.fact(StepReport(step=5, finished=[row]))
    stage.text_finished(row, 4)
    (finished,) = stage.scheduler.take_finished()
    assert finished.times.stage_seconds() == {
        "queue": 0.0,
        "tokenize": 1.0,
        "prefill": 2.0,
        "decode": 4.0,
    }
    assert str(finished.trace) == TRACEPARENT
    counters = stage.scheduler.board_counters()
    assert (counters["prompt_tokens"], counters["ended_length"]) == (3, 1)


def test_a_repeated_order_brings_the_trace_back_after_a_restart() -> None:
    stage = SchedulerStage()
    order = SubmitRequest(
        request_id=b"request-00000001",
        prompt=TextPrompt("x"),
        params=SamplingParams(),
        traceparent=TRACEPARENT,
    )
    stage.client(order)
    stage.restart()
    stage.client(order)
    stage.client(CancelRequest(b"request-00000001"))
    (finished,) = stage.scheduler.take_finished()
    assert str(finished.trace) == TRACEPARENT


def test_tokens_that_are_computed_again_are_counted() -> None:
    stage = SchedulerStage()
    stage.submit(max_tokens=50)
    row = stage.run(10)
    stage.sampled(row, 7)
    assert stage.scheduler.board_counters()["replayed_tokens"] == 0
    stage.died("gpu")
    stage.attach_gpu(2, [])
    assert stage.scheduler.board_counters()["replayed_tokens"] == 17


def test_prompts_at_tokenizers_are_counted() -> None:
    stage = SchedulerStage()
    stage.submit()
    assert stage.scheduler.board_counters()["encoding"] == 1
    stage.encode_all()
    assert stage.scheduler.board_counters()["encoding"] == 0
