"""An idle tree proves with a token of its own that it is ready."""

from __future__ import annotations

from hybridgen.messages import (
    CloseText,
    DrainTree,
    EncodePrompt,
    HealthReport,
    QueryHealth,
    SlotEvent,
    StepReport,
)
from hybridgen.request import FinishReason
from hybridgen.scheduler.canary import MAX_PROOF_AGE_S, TIMEOUT_S, WAIT_S
from tests.support.scheduler_stage import SchedulerStage, ToClient

QUESTION = b"q" * 16


def ask(stage: SchedulerStage, request_id: bytes = QUESTION) -> list[HealthReport]:
    stage.client(QueryHealth(request_id))
    return stage.pop(HealthReport)


def test_a_rested_tree_is_ready_once_its_own_token_is_there() -> None:
    stage = SchedulerStage()
    assert ask(stage) == []
    stage.serve_one()
    (report,) = stage.pop(HealthReport)
    assert (report.is_ready, report.status, report.request_id) == (True, "ready", QUESTION)
    assert stage.is_at_baseline()


def test_the_token_takes_the_way_of_every_request() -> None:
    stage = SchedulerStage()
    ask(stage)
    row = stage.run()  # tokenizer, gpu process
    stage.sampled(row, 1, FinishReason.LENGTH)
    stage.fact(StepReport(step=2, finished=[row]))
    assert stage.pop(CloseText) == [CloseText(*_key(row))]  # nobody will subscribe
    assert stage.pop(HealthReport) == []  # the detokenizer has not answered
    stage.text_finished(row, 1)
    assert stage.pop(HealthReport)[0].is_ready


def test_a_recent_step_is_proof_enough() -> None:
    stage = SchedulerStage()
    ask(stage)
    stage.serve_one()
    stage.advance(MAX_PROOF_AGE_S - 0.1)
    assert ask(stage)[-1].is_ready
    stage.pop(EncodePrompt)
    stage.advance(0.2)
    assert ask(stage) == []
    assert len(stage.pop(EncodePrompt)) == 1


def test_while_there_is_work_no_token_is_asked_for() -> None:
    stage = SchedulerStage()
    stage.submit()
    assert ask(stage)[0].is_ready
    assert len(stage.pop(EncodePrompt)) == 1


def test_without_a_token_the_tree_is_not_ready_and_says_why() -> None:
    stage = SchedulerStage()
    ask(stage)
    stage.run()
    stage.advance(WAIT_S + 0.01)
    (report,) = stage.pop(HealthReport)
    assert (report.is_ready, report.status) == (False, "not ready: no token within 2 s")


def test_a_token_that_fails_is_a_reason_and_the_next_question_tries_again() -> None:
    stage = SchedulerStage()
    ask(stage)
    row = stage.run()
    stage.advance(TIMEOUT_S + 0.1)  # its own deadline
    stage.text_finished(row, 0, FinishReason.CANCELLED)
    stage.fact(StepReport(step=2, retired=[row]))
    stage.pop(HealthReport)
    stage.advance(MAX_PROOF_AGE_S + 1)
    assert ask(stage) == []
    stage.serve_one()
    assert stage.pop(HealthReport)[0].is_ready


def test_all_who_ask_meanwhile_get_the_same_answer_and_a_repeat_only_one() -> None:
    stage = SchedulerStage()
    for name in (b"a" * 16, b"b" * 16, b"a" * 16):
        assert ask(stage, name) == []
    assert len(stage.sent) > 0
    stage.serve_one()
    assert [report.request_id for report in stage.pop(HealthReport)] == [b"a" * 16, b"b" * 16]


def test_the_token_is_counted_and_logged_nowhere() -> None:
    stage = SchedulerStage()
    ask(stage)
    stage.serve_one()
    assert stage.scheduler.take_finished() == []
    counters = stage.scheduler.board_counters()
    counted = ("accepted", "finished", "ended_length", "prompt_tokens")
    assert {name: counters[name] for name in counted} == dict.fromkeys(counted, 0)
    assert not [
        to for to in stage.sent if isinstance(to, ToClient) and to.client_id[:9] == b"hybridgen"
    ]


def test_a_tree_that_cannot_serve_says_so_without_a_token() -> None:
    stage = SchedulerStage(has_workers=False)
    assert ask(stage)[0].status == "loading"
    stage = SchedulerStage()
    stage.fact(DrainTree(10.0))
    assert ask(stage)[0].status == "draining"
    assert stage.pop(EncodePrompt) == []


def test_a_process_that_stands_still_is_named() -> None:
    stage = SchedulerStage(num_tokenizers=2)
    ask(stage)
    stage.serve_one()
    for names, status, is_ready in (
        (["gpu-0"], "not ready: gpu-0 stands still", False),
        (["sampler-1"], "not ready: sampler-1 stands still", False),
        (["tokenizer-1"], "degraded: without tokenizer-1", True),
        (["tokenizer-0", "tokenizer-1"], "not ready: no tokenizer that moves", False),
        ([], "ready", True),
    ):
        stage.scheduler.note_board(still=names, num_samplers=2)
        report = stage.scheduler.health()
        assert (report.status, report.is_ready) == (status, is_ready)


def _key(row: SlotEvent) -> tuple[int, int]:
    return row.slot, row.epoch
