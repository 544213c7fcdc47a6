from __future__ import annotations

import pytest

from hybridgen.ipc.slot_table import Finish, RowError, SlotState, SlotWord, pack_finish
from hybridgen.messages import (
    AckFinished,
    AttachWorker,
    BatchRow,
    CloseText,
    EncodePrompt,
    JoinBatch,
    OpenText,
    PromptEncoded,
    RequestAccepted,
    RetireSlot,
    SlotEvent,
    StepReport,
    WorkerAttached,
    WorkerDied,
)
from hybridgen.request import FinishReason
from tests.support.scheduler_stage import SchedulerStage


def test_rows_of_a_dead_gpu_process_wait_again_with_their_tokens() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run(10)
    stage.sampled(row, 7)
    stage.died("gpu")
    assert stage.state() is SlotState.WAITING
    stage.attach_gpu(2, [])
    (join,) = stage.pop(JoinBatch)
    assert (join.slot, join.epoch, join.num_tokens) == (0, 1, 17)
    assert stage.table.load(0, SlotWord.DEATHS) == 1


def test_a_new_gpu_process_means_the_death_of_the_old_one() -> None:
    stage = SchedulerStage()
    stage.submit()
    stage.run(10)
    stage.attach_gpu(2, [])
    assert len(stage.pop(JoinBatch)) == 1
    stage.died("gpu", incarnation=1)  # late news
    assert stage.state() is SlotState.PREFILL


def test_two_deaths_without_a_token_between_quarantine_the_request() -> None:
    stage = SchedulerStage()
    stage.submit()
    stage.run(10)
    for incarnation in (1, 2):
        stage.died("gpu", incarnation)
        stage.attach_gpu(incarnation + 1, [])
    assert stage.codes() == ["poison_request"]
    assert len(stage.pop(JoinBatch)) == 1


def test_a_request_that_moves_on_survives_any_number_of_deaths() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run(10)
    for incarnation in range(1, 6):
        stage.sampled(row, 2 * incarnation)
        stage.died("gpu", incarnation)
        stage.attach_gpu(incarnation + 1, [])
    assert stage.finals() == []
    assert len(stage.pop(JoinBatch)) == 5


def test_a_finish_word_set_before_the_death_is_not_recomputed() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run(10)
    stage.sampled(row, 7, FinishReason.LENGTH)
    stage.died("gpu")
    stage.attach_gpu(2, [])
    assert stage.pop(JoinBatch) == []
    stage.text_finished(row, 7)
    assert [final.finish_reason for final in stage.finals()] == ["length"]


def test_prompts_of_a_replaced_tokenizer_are_sent_again() -> None:
    stage = SchedulerStage()
    stage.submit()
    stage.submit()
    first = stage.pop(EncodePrompt)
    for incarnation in (1, 2, 3):
        stage.died("tokenizer", incarnation)  # it worked for nobody
        stage.attach("tokenizer", incarnation=incarnation + 1)
        assert stage.pop(EncodePrompt) == first
    assert stage.codes() == []


def test_texts_of_a_replaced_detokenizer_are_opened_again_also_finished_ones() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run()
    cancelled = stage.submit(timeout_s=1.0)
    assert cancelled
    stage.sampled(row, 1, FinishReason.STOP)
    stage.fact(StepReport(step=2, finished=[row]))
    stage.text_finished(row, 1, FinishReason.STOP)
    stage.pop(OpenText)
    stage.died("detokenizer")
    stage.attach("detokenizer", incarnation=2)
    assert stage.pop(OpenText) == [OpenText(0, 1), OpenText(1, 1)]
    assert stage.pop(CloseText) == []


def test_a_detokenizer_that_never_comes_back_hands_its_texts_over() -> None:
    stage = SchedulerStage(num_detokenizers=2)
    request_id = stage.submit()
    row = stage.run()
    stage.pop(RequestAccepted)
    stage.pop(OpenText)
    stage.died("detokenizer", is_final=True)
    assert [(a.request_id, a.detokenizer) for a in stage.pop(RequestAccepted)] == [(request_id, 1)]
    assert stage.pop(OpenText) == [OpenText(0, 1)]
    stage.fact(StepReport(step=2, retired=[row]))
    assert [join.detokenizer for join in stage.pop(JoinBatch)] == [1]
    stage.fact(WorkerDied("detokenizer", 1, 1, "killed", True))
    assert stage.codes() == ["restart_budget_spent"]


def test_a_tokenizer_that_never_comes_back_hands_its_prompts_over() -> None:
    stage = SchedulerStage(num_tokenizers=2)
    for _ in range(4):
        stage.submit()
    assert [order.slot for order in stage.pop(EncodePrompt)] == [0, 1, 2, 3]
    stage.died("tokenizer", is_final=True)
    assert [order.slot for order in stage.pop(EncodePrompt)] == [0, 2]
    stage.fact(WorkerDied("tokenizer", 1, 1, "killed", True))
    assert stage.codes() == ["restart_budget_spent"] * 4
    stage.submit()
    assert stage.codes() == ["restart_budget_spent"]


def test_restore_keeps_rows_that_the_gpu_process_holds() -> None:
    stage = SchedulerStage()
    request_id = stage.submit(seed=5)
    row = stage.run(10)
    stage.sampled(row, 7)
    stage.restart()
    assert len(stage.pop(AttachWorker)) == 3
    stage.attach_all(rows=[BatchRow(0, 1, 16, [4, 5, 6])])
    assert stage.pop(JoinBatch) == []
    assert stage.pop(RetireSlot) == []
    assert stage.scheduler.health().num_free_blocks == 32 - 3
    stage.submit(request_id=request_id)
    assert [accepted.seed for accepted in stage.pop(RequestAccepted)][-1] == 5
    stage.sampled(row, 9, FinishReason.STOP)
    stage.fact(StepReport(step=5, finished=[row]))
    stage.text_finished(row, 9, FinishReason.STOP)
    stage.client(AckFinished(request_id))
    assert stage.is_at_baseline()


def test_restore_retires_rows_that_no_slot_knows() -> None:
    stage = SchedulerStage()
    stage.restart()
    stage.attach_all(rows=[BatchRow(2, 9, 16, [4, 5, 6])])
    assert stage.pop(RetireSlot) == [RetireSlot(2, 9)]
    assert stage.scheduler.health().num_free_blocks == 32 - 3
    stage.fact(StepReport(step=5, retired=[SlotEvent(2, 9)]))
    assert stage.is_at_baseline()


def test_restore_rejoins_rows_that_were_lost_with_the_gpu_process() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run(10)
    stage.sampled(row, 7)
    stage.restart()
    stage.attach_all()
    assert [join.num_tokens for join in stage.pop(JoinBatch)] == [17]


def test_restore_finds_a_finish_word_that_nobody_heard_of() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run(10)
    stage.sampled(row, 7, FinishReason.STOP)
    stage.restart()
    stage.attach_all()
    assert stage.pop(JoinBatch) == []
    stage.text_finished(row, 7, FinishReason.STOP)
    assert [final.finish_reason for final in stage.finals()] == ["stop"]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (SlotWord.STATE, 77),
        (SlotWord.FINISH, 0xFF),
        (SlotWord.END_REASON, 2**40),
        (SlotWord.TOKENIZER, 1),
        (SlotWord.DETOKENIZER, 1),
        (SlotWord.PROMPT_LEN, 129),
        (SlotWord.MAX_LEN, 129),
    ],
)
def test_restore_gives_up_a_slot_whose_words_nobody_wrote(word: SlotWord, value: int) -> None:
    stage = SchedulerStage()
    for _ in range(2):
        stage.submit()
    stage.table.store(0, word, value)
    stage.restart()
    assert stage.state() is SlotState.FREE
    assert stage.table.load(1, SlotWord.STATE) == SlotState.ENCODING


def test_a_spent_grammar_is_named_also_where_the_gpu_process_speaks_first() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run(10)
    finish = Finish(FinishReason.ERROR, RowError.GRAMMAR_SPENT, 7)
    stage.table.store(row.slot, SlotWord.FINISH, pack_finish(finish))
    stage.fact(StepReport(step=2, finished=[row]))
    stage.text_finished(row, 7, FinishReason.ERROR)
    assert stage.codes() == ["grammar_spent"]


def test_restore_keeps_an_end_that_was_decided() -> None:
    stage = SchedulerStage()
    stage.submit(timeout_s=1.0)
    row = stage.run(10)
    stage.sampled(row, 7)
    stage.advance(1.0)
    stage.restart()
    stage.attach_all(rows=[BatchRow(0, 1, 16, [4, 5])])
    assert CloseText(0, 1) in stage.pop(CloseText)
    assert RetireSlot(0, 1) in stage.pop(RetireSlot)
    stage.text_finished(row, 7, FinishReason.ERROR)
    assert stage.codes() == ["deadline_exceeded"]


def test_a_lost_prompt_is_encoded_when_the_client_repeats_it() -> None:
    stage = SchedulerStage()
    request_id = stage.submit(max_tokens=3)
    stage.pop(EncodePrompt)
    stage.restart()
    stage.attach_all()
    assert stage.pop(EncodePrompt) == []
    stage.submit(request_id=request_id, max_tokens=3)
    assert stage.encode_all(10) == [SlotEvent(0, 1)]
    assert stage.table.load(0, SlotWord.MAX_LEN) == 13


def test_a_lost_prompt_that_nobody_repeats_frees_its_slot() -> None:
    stage = SchedulerStage(ack_timeout_s=10.0)
    stage.submit()
    stage.restart()
    stage.attach_all()
    stage.advance(10.0)
    stage.text_finished(SlotEvent(0, 1), 0, FinishReason.CANCELLED)
    assert stage.is_at_baseline()


def test_max_tokens_survives_a_restart_while_the_prompt_is_encoded() -> None:
    stage = SchedulerStage()
    stage.submit(max_tokens=3)
    stage.restart()
    stage.attach_all()
    stage.fact(PromptEncoded(0, 1, 10))
    assert stage.table.load(0, SlotWord.MAX_LEN) == 13


def test_an_answer_to_a_dead_coscheduler_is_ignored() -> None:
    stage = SchedulerStage(has_workers=False)
    stage.fact(WorkerAttached(role="gpu", index=0, incarnation=1, num_blocks=8, answers=99))
    assert stage.scheduler.health().num_blocks == 0


def test_facts_about_former_occupants_change_nothing() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run()
    stale = SlotEvent(row.slot, row.epoch + 1)
    stage.fact(StepReport(step=2, finished=[stale], retired=[stale, row]))
    stage.starve(stale)
    stage.fact(PromptEncoded(stale.slot, stale.epoch, 5))
    stage.fact(PromptEncoded(row.slot, row.epoch, 5))
    stage.text_finished(stale, 5)
    assert stage.state() is SlotState.RUNNING
    assert stage.finals() == []
    assert stage.table.load(0, SlotWord.PROMPT_LEN) == 10


def test_the_final_death_of_the_gpu_process_ends_everything() -> None:
    stage = SchedulerStage(num_slots=1)
    stage.submit()
    stage.submit()
    row = stage.run()
    stage.died("gpu", is_final=True)
    stage.text_finished(row, 0, FinishReason.ERROR)
    stage.submit()
    assert stage.codes() == ["restart_budget_spent"] * 3
