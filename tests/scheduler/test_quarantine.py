"""A request that kills is ended after two deaths of one kind; the others go on."""

from __future__ import annotations

import pytest

from hybridgen.ipc.pulse import PROBE_SLOT
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.messages import (
    EncodeProbe,
    EncodePrompt,
    JoinBatch,
    OpenText,
    PromptEncoded,
    PromptTokenized,
    SlotEvent,
    StepReport,
    TokenizePrompt,
)
from hybridgen.request import FinishReason, TextPrompt
from hybridgen.scheduler.quarantine import CLEARING_S
from tests.support.scheduler_stage import SchedulerStage


def running(stage: SchedulerStage, num_requests: int) -> list[SlotEvent]:
    """Rows that decode."""
    for _ in range(num_requests):
        stage.submit()
    stage.encode_all(10)
    return join_all(stage)


def join_all(stage: SchedulerStage) -> list[SlotEvent]:
    rows = [SlotEvent(join.slot, join.epoch) for join in stage.pop(JoinBatch)]
    if rows:
        stage.fact(StepReport(step=1, prefilled=rows))
    return rows


def replace_gpu(stage: SchedulerStage, incarnation: int, served: SlotEvent | None = None) -> None:
    stage.died("gpu", incarnation, served=served)
    stage.attach_gpu(incarnation + 1, [])


def test_the_prompt_that_a_tokenizer_died_on_twice_is_ended_and_the_next_one_encoded() -> None:
    stage = SchedulerStage()
    stage.submit()
    stage.submit()
    first, second = stage.pop(EncodePrompt)
    served = SlotEvent(first.slot, first.epoch)
    stage.died("tokenizer", 1, served=served)
    stage.attach("tokenizer", incarnation=2)
    assert stage.pop(EncodePrompt) == [first, second]
    stage.died("tokenizer", 2, served=served)
    assert stage.codes() == ["poison_request"]
    stage.attach("tokenizer", incarnation=3)
    assert stage.pop(EncodePrompt) == [second]


def test_a_prompt_without_a_slot_that_kills_is_answered_with_the_error() -> None:
    stage = SchedulerStage()
    stage.client(TokenizePrompt(bytes(16), TextPrompt("x")))
    (probe,) = stage.pop(EncodeProbe)
    for incarnation in (1, 2):
        stage.died("tokenizer", incarnation, served=SlotEvent(PROBE_SLOT, probe.probe_id))
        stage.attach("tokenizer", incarnation=incarnation + 1)
    (answer,) = stage.pop(PromptTokenized)
    assert answer.error is not None
    assert answer.error.code == "poison_request"
    assert len(stage.pop(EncodeProbe)) == 1


def test_the_text_that_a_detokenizer_died_on_twice_is_ended_and_not_opened_again() -> None:
    stage = SchedulerStage()
    bad, good = running(stage, 2)
    stage.sampled(bad, 5)
    for incarnation in (1, 2):
        stage.pop(OpenText)
        stage.died("detokenizer", incarnation, served=bad)
        stage.attach("detokenizer", incarnation=incarnation + 1)
    assert stage.codes() == ["poison_request"]
    assert stage.pop(OpenText) == [OpenText(good.slot, good.epoch)]


def test_a_text_whose_tokens_are_all_there_can_still_be_what_kills() -> None:
    stage = SchedulerStage()
    bad, _ = running(stage, 2)
    stage.sampled(bad, 5, FinishReason.LENGTH)
    stage.fact(StepReport(step=2, finished=[bad]))
    for incarnation in (1, 2):
        stage.died("detokenizer", incarnation, served=bad)
        stage.attach("detokenizer", incarnation=incarnation + 1)
    assert stage.codes() == ["poison_request"]


def test_a_text_that_kills_after_its_end_is_given_up() -> None:
    stage = SchedulerStage()
    (bad,) = running(stage, 1)
    stage.sampled(bad, 5, FinishReason.LENGTH)
    stage.fact(StepReport(step=2, finished=[bad]))
    stage.text_finished(bad, 5)
    for incarnation in (1, 2):  # its client came back and asked for it again
        stage.died("detokenizer", incarnation, served=bad)
        stage.attach("detokenizer", incarnation=incarnation + 1)
    assert stage.codes() == [""]
    assert stage.is_at_baseline()


def test_two_deaths_of_a_detokenizer_far_apart_end_no_text() -> None:
    stage = SchedulerStage()
    (row,) = running(stage, 1)
    for incarnation in (1, 2, 3):
        stage.died("detokenizer", incarnation, served=row)
        stage.attach("detokenizer", incarnation=incarnation + 1)
        stage.advance(CLEARING_S + 1)
    assert stage.codes() == []


def test_a_text_that_kills_while_its_tokens_keep_coming_is_ended() -> None:
    stage = SchedulerStage()
    (bad,) = running(stage, 1)
    for incarnation in (1, 2):
        stage.sampled(bad, 20 * incarnation)
        stage.died("detokenizer", incarnation, served=bad)
        stage.attach("detokenizer", incarnation=incarnation + 1)
        stage.advance(1.0)
    assert set(stage.codes()) == {"poison_request"}  # said again until it is acknowledged


def test_a_row_that_a_second_sampler_died_on_is_ended() -> None:
    stage = SchedulerStage()
    bad, good = running(stage, 2)
    stage.died("sampler", 1)  # the first to die on it could not say so
    assert stage.codes() == []
    stage.died("sampler", 2, served=bad)
    assert stage.codes() == []  # its text is flushed first
    stage.text_finished(bad, 0, FinishReason.CANCELLED)
    assert stage.codes() == ["poison_request"]
    assert stage.table.load(bad.slot, SlotWord.END_REASON) != 0
    assert stage.table.load(good.slot, SlotWord.END_REASON) == 0


def test_the_prompt_that_the_gpu_process_died_on_twice_is_ended_alone() -> None:
    stage = SchedulerStage()
    bad, good = running(stage, 2)
    replace_gpu(stage, 1, served=bad)
    assert len(join_all(stage)) == 2
    replace_gpu(stage, 2, served=bad)
    assert stage.codes() == ["poison_request"]
    assert [join.slot for join in stage.pop(JoinBatch)] == [good.slot]


def test_deaths_of_different_kinds_do_not_add_up() -> None:
    stage = SchedulerStage(num_tokenizers=2)
    stage.submit()
    (order,) = stage.pop(EncodePrompt)
    served = SlotEvent(order.slot, order.epoch)
    stage.died("tokenizer", 1, served=served)
    stage.attach("tokenizer", incarnation=2)
    stage.run()
    replace_gpu(stage, 1)
    stage.died("detokenizer", 1, served=served)
    assert stage.codes() == []
    assert stage.table.load(0, SlotWord.DEATHS) == 0x01_01_00_01


def test_one_token_after_a_restart_clears_nobody() -> None:
    stage = SchedulerStage()
    (bad,) = running(stage, 1)
    stage.sampled(bad, 7)
    replace_gpu(stage, 1)
    join_all(stage)
    stage.sampled(bad, 8)  # chosen from the logits of the prefill
    replace_gpu(stage, 2)
    stage.text_finished(bad, 8, FinishReason.CANCELLED)
    assert stage.codes() == ["poison_request"]


@pytest.mark.parametrize("position", range(4))
def test_of_rows_that_decode_together_the_one_that_kills_is_found_and_no_other(
    position: int,
) -> None:
    stage = SchedulerStage()
    rows = running(stage, 4)
    bad = rows[position]
    tokens = dict.fromkeys(rows, 0)
    incarnation = 1
    for _ in range(2):  # twice with all of them
        replace_gpu(stage, incarnation)
        incarnation += 1
        joined = join_all(stage)
    assert len(joined) == 1  # one by one from now on
    while bad not in joined:
        for row in joined:
            tokens[row] += 2
            stage.sampled(row, tokens[row])
        stage.advance(0.05)
        joined = join_all(stage)
    replace_gpu(stage, incarnation)
    stage.text_finished(bad, 0, FinishReason.CANCELLED)
    assert stage.codes() == ["poison_request"]
    stage.advance(0.05)
    for _ in rows:
        for row in join_all(stage):
            tokens[row] += 2
            stage.sampled(row, tokens[row])
        stage.advance(0.05)
    assert stage.codes() == []
    assert stage.scheduler.health().num_running == 3


def test_a_suspect_on_trial_is_the_one_that_killed_and_not_a_newcomer_beside_it() -> None:
    stage = SchedulerStage()
    rows = running(stage, 2)
    replace_gpu(stage, 1)
    join_all(stage)
    stage.submit(priority=1)  # it does not queue behind the other suspect
    stage.encode_all(10)
    newcomer = join_all(stage)
    replace_gpu(stage, 2)
    joined = join_all(stage)
    assert newcomer[0] in joined
    tried = [row for row in joined if row not in newcomer]
    assert len(tried) == 1
    replace_gpu(stage, 3)
    stage.text_finished(tried[0], 0, FinishReason.CANCELLED)
    assert stage.codes() == ["poison_request"]
    others = [row for row in rows if row not in tried] + newcomer
    assert all(stage.table.load(row.slot, SlotWord.END_REASON) == 0 for row in others)


def test_asking_when_to_look_again_writes_nothing() -> None:
    stage = SchedulerStage()
    running(stage, 2)
    for incarnation in (1, 2):
        replace_gpu(stage, incarnation)
        (*_, row) = join_all(stage)
    stage.sampled(row, 5)
    before = bytes(stage.table.buf)
    batch = stage.scheduler._batch
    assert batch.is_trying_suspect
    assert batch.next_s() < float("inf")
    assert bytes(stage.table.buf) == before


def test_a_death_names_only_the_present_occupant() -> None:
    stage = SchedulerStage()
    (row,) = running(stage, 1)
    for incarnation in (1, 2, 3):
        stage.died("sampler", incarnation, served=SlotEvent(row.slot, row.epoch - 1))
        stage.died("sampler", incarnation, served=SlotEvent(99, 1))
    assert stage.codes() == []


def test_what_a_dead_process_still_said_counts_no_more() -> None:
    stage = SchedulerStage()
    stage.submit()
    (order,) = stage.pop(EncodePrompt)
    stage.died("tokenizer", 1)
    stage.attach("tokenizer", incarnation=2)
    stage.pop(EncodePrompt)
    late = stage.scheduler.counters.stale
    stage.fact(_encoded(order, incarnation=1))
    assert stage.scheduler.counters.stale == late + 1
    assert stage.pop(JoinBatch) == []
    stage.fact(_encoded(order, incarnation=2))
    (row,) = join_all(stage)
    replace_gpu(stage, 1)
    stage.pop(JoinBatch)
    stage.fact(StepReport(step=9, finished=[row], incarnation=1))
    assert stage.finals() == []
    assert stage.scheduler.health().num_running == 1


def test_the_incarnations_of_different_tokenizers_are_not_compared() -> None:
    stage = SchedulerStage(num_tokenizers=2)
    stage.submit()
    (order,) = stage.pop(EncodePrompt)
    stage.died("tokenizer", 5, is_final=True)  # its prompt goes to the other one
    assert stage.pop(EncodePrompt) == [order]
    stage.fact(_encoded(order, incarnation=5))
    assert stage.pop(JoinBatch) == []
    stage.fact(_encoded(order, incarnation=1, tokenizer=1))
    assert len(stage.pop(JoinBatch)) == 1


def _encoded(order: EncodePrompt, incarnation: int, tokenizer: int = 0) -> PromptEncoded:
    return PromptEncoded(order.slot, order.epoch, 10, incarnation, tokenizer)
