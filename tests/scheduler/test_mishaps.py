"""Frames between the coscheduler and workers are dropped, doubled, delayed and overtaken.

Every text is still that of an undisturbed run, and all slots and blocks come back. Below, single
messages that are lost.
"""

from __future__ import annotations

import pytest

from hybridgen.errors import SlowReader
from hybridgen.messages import (
    AckFinished,
    AttachWorker,
    CheckLink,
    CloseText,
    EncodeProbe,
    EncodePrompt,
    ErrorInfo,
    GrantBlocks,
    JoinBatch,
    LinkChecked,
    OpenText,
    PromptEncoded,
    RequestAccepted,
    RequestFinished,
    RetireSlot,
    StepReport,
    SubmitRequest,
    TextFinished,
    TokenizePrompt,
    WorkerAttached,
)
from hybridgen.request import FinishReason, SamplingParams, TextPrompt
from tests.support.fault_proxy import Mishap, Mishaps
from tests.support.scheduler_stage import SchedulerStage
from tests.support.simulated_tree import SimulatedTree

KINDS = (
    *(AttachWorker, WorkerAttached, CheckLink, LinkChecked),
    *(EncodePrompt, PromptEncoded),
    *(JoinBatch, GrantBlocks, RetireSlot, StepReport),
    *(OpenText, CloseText, TextFinished),
)


def disturbed_tree(seed: int, mishaps: Mishaps, num_requests: int = 10) -> SimulatedTree:
    tree = SimulatedTree(seed, num_blocks=9, mishaps=mishaps)
    draw = tree.random
    for _ in range(num_requests):
        prompt = [draw.randrange(1, 97) for _ in range(draw.randrange(1, 20))]
        max_tokens = draw.choice([None, 1, 3, 12])
        tree.submit(prompt, max_tokens=max_tokens, has_stop=draw.random() < 0.3)
    return tree


def num_mishaps(tree: SimulatedTree) -> int:
    proxies = [proxy for link in tree.links.values() for proxy in (link.orders, link.facts)]
    return sum(proxy.num_mishaps.total() for proxy in proxies)


def check(tree: SimulatedTree) -> None:
    tree.run_until_idle()
    tree.check_ended()
    tree.check_baseline()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mishap", Mishap)
def test_no_mishap_changes_a_text(seed: int, mishap: Mishap) -> None:
    tree = disturbed_tree(seed, Mishaps.of(mishap))
    check(tree)
    assert all(asked.is_natural for asked in tree.asked.values())
    assert num_mishaps(tree)


@pytest.mark.parametrize("mishap", Mishap)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_message_is_needed_as_it_was_sent(kind: type, mishap: Mishap) -> None:
    tree = disturbed_tree(1, Mishaps.of(mishap, share=0.5, kinds=(kind.__name__,)))
    check(tree)
    assert all(asked.is_natural for asked in tree.asked.values())


# The last ones: late words from and for the dead, which two processes in a row had missed.
@pytest.mark.parametrize("seed", [*range(20), 1138, 3223])
def test_mishaps_kills_and_cancels_together(seed: int) -> None:
    tree = disturbed_tree(seed, Mishaps.of(*Mishap), num_requests=6)
    draw = tree.random
    for _ in range(6):
        tree.run(draw.randrange(40, 200))
        match draw.randrange(4):
            case 0:
                tree.kill_coscheduler()
            case 1:
                tree.kill_worker(draw.choice(sorted(tree.workers)))
            case 2:
                open_ids = [name for name, asked in tree.asked.items() if not asked.finals]
                if open_ids:
                    tree.cancel(draw.choice(open_ids))
    check(tree)
    codes = {a.finals[0].error.code for a in tree.asked.values() if a.finals[0].error}
    assert codes <= {"poison_request", "cancelled"}


def test_repeated_and_missed_frames_are_counted() -> None:
    doubled = disturbed_tree(1, Mishaps.of(Mishap.DOUBLE))
    dropped = disturbed_tree(1, Mishaps.of(Mishap.DROP))
    for tree in (doubled, dropped):
        check(tree)
    assert sum(link.num_repeated for link in doubled.links.values()) > 0
    assert sum(link.num_missed for link in doubled.links.values()) == 0
    assert sum(link.num_missed for link in dropped.links.values()) > 0


def finished_request(stage: SchedulerStage) -> bytes:
    name = stage.submit()
    row = stage.run()
    stage.sampled(row, 1, FinishReason.LENGTH)
    stage.fact(StepReport(step=2, finished=[row]))
    stage.text_finished(row, 1)
    return name


def test_a_final_message_is_said_again_until_it_is_acknowledged() -> None:
    stage = SchedulerStage()
    name = finished_request(stage)
    stage.advance(0.0)
    for _ in range(3):
        assert len(stage.finals()) == 1
        stage.advance(1.0)
    stage.finals()
    stage.client(AckFinished(name))
    stage.advance(1.0)
    assert stage.finals() == []
    assert stage.is_at_baseline()


def test_who_asks_after_the_end_hears_again_who_has_the_text() -> None:
    stage = SchedulerStage()
    name = finished_request(stage)
    stage.sent.clear()
    order = SubmitRequest(request_id=name, prompt=TextPrompt("hello"), params=SamplingParams())
    stage.client(order)
    assert len(stage.pop(RequestAccepted)) == 1
    assert len(stage.pop(RequestFinished)) == 1


def test_a_lost_probe_is_found_by_the_check_of_the_link() -> None:
    stage = SchedulerStage()
    stage.client(TokenizePrompt(b"p" * 16, TextPrompt("hello")))
    (probe,) = stage.pop(EncodeProbe)
    stage.advance(0.0)
    stage.advance(1.0)
    assert len(stage.pop(CheckLink)) == 3
    stage.scheduler.doubt("tokenizer-0")
    stage.take()
    (call,) = stage.pop(AttachWorker)
    assert call == AttachWorker(1, 1)
    stage.fact(WorkerAttached(role="tokenizer", index=0, incarnation=1, answers=1, call=1))
    assert stage.pop(EncodeProbe) == [probe]


def test_an_answer_to_an_earlier_call_says_nothing() -> None:
    stage = SchedulerStage()
    stage.submit()
    stage.encode_all()
    for _ in range(2):
        stage.scheduler.doubt("gpu-0")
        stage.fact(
            WorkerAttached(role="gpu", index=0, incarnation=1, num_blocks=32, answers=1, call=1)
        )
    assert not stage.scheduler.health().is_ready


def test_a_text_that_was_given_up_is_no_bug_where_its_reason_was_lost() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run()
    stage.sampled(row, 5)
    error = ErrorInfo.of(SlowReader("the client did not take its text"))
    cancelled = int(FinishReason.CANCELLED)
    stage.fact(
        TextFinished(
            slot=row.slot,
            epoch=row.epoch,
            num_tokens=2,
            num_chars=2,
            finish_reason=cancelled,
            error=error,
        )
    )
    (final,) = stage.finals()
    assert (final.finish_reason, final.error) == ("cancelled", error)
