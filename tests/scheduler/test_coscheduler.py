from __future__ import annotations

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.ipc.runtime_dir import gateway_prefix
from hybridgen.ipc.slot_table import SlotState, SlotWord
from hybridgen.messages import (
    AckFinished,
    CancelRequest,
    CloseText,
    DrainTree,
    EncodeProbe,
    EncodePrompt,
    ErrorInfo,
    GrantBlocks,
    HealthReport,
    JoinBatch,
    OpenText,
    ProbeEncoded,
    PromptEncoded,
    PromptRejected,
    PromptTokenized,
    QueryHealth,
    ReaderLost,
    RequestAccepted,
    RetireSlot,
    SlotEvent,
    StepReport,
    SubmitRequest,
    TokenizePrompt,
    TreeDrained,
)
from hybridgen.request import FinishReason, IdsPrompt, SamplingParams, TextPrompt
from hybridgen.sampling.parameters import unpack
from hybridgen.scheduler.outbox import ToClient
from tests.support.scheduler_stage import CLIENT, SchedulerStage


def test_a_request_passes_through_every_state() -> None:
    stage = SchedulerStage()
    request_id = stage.submit(max_tokens=5)
    assert stage.state() is SlotState.ENCODING
    assert stage.pop(RequestAccepted) == [RequestAccepted(request_id, 0, 1001)]
    assert stage.pop(OpenText) == [OpenText(0, 1)]
    (order,) = stage.pop(EncodePrompt)
    stage.fact(PromptEncoded(order.slot, order.epoch, 20))
    assert stage.state() is SlotState.PREFILL
    (join,) = stage.pop(JoinBatch)
    assert (join.num_tokens, len(join.blocks)) == (20, 2)  # 24 positions at most: two blocks
    row = SlotEvent(0, 1)
    stage.fact(StepReport(step=1, prefilled=[row]))
    assert stage.state() is SlotState.RUNNING
    stage.sampled(row, 5, FinishReason.LENGTH)
    stage.fact(StepReport(step=6, finished=[row]))
    assert stage.state() is SlotState.FINISHED
    assert stage.finals() == []
    stage.text_finished(row, 5)
    (final,) = stage.finals()
    assert (final.finish_reason, final.num_prompt_tokens, final.num_tokens) == ("length", 20, 5)
    assert stage.state() is SlotState.FINISHED
    stage.client(AckFinished(request_id))
    assert stage.state() is SlotState.FREE
    assert stage.is_at_baseline()


def test_the_slot_record_holds_what_samplers_need() -> None:
    stage = SchedulerStage()
    stage.submit(max_tokens=5, temperature=0.5, seed=77, stop=("x",))
    stage.encode_all(20)
    params, _, seed = unpack(stage.table.parameters(0))
    assert (params.temperature, seed, params.stop) == (0.5, 77, ("x",))
    assert stage.table.load(0, SlotWord.PROMPT_LEN) == 20
    assert stage.table.load(0, SlotWord.MAX_LEN) == 25
    assert stage.table.client_id(0) == CLIENT


def test_an_epoch_is_never_used_twice() -> None:
    stage = SchedulerStage(num_slots=1)
    epochs = []
    for _ in range(3):
        request_id = stage.submit()
        (order,) = stage.pop(EncodePrompt)
        epochs.append(order.epoch)
        stage.fact(PromptRejected(0, order.epoch, ErrorInfo("invalid_request", "no")))
        stage.text_finished(SlotEvent(0, order.epoch), 0, FinishReason.ERROR)
        stage.client(AckFinished(request_id))
        stage.restart()
        stage.attach_all()
    assert epochs == [1, 2, 3]


def test_lookahead_blocks_are_granted_at_join_and_on_starving() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run(10)
    assert stage.scheduler.health().num_free_blocks == 32 - 3
    stage.starve(row)
    (grant,) = stage.pop(GrantBlocks)
    assert (grant.first, len(grant.blocks)) == (3, 2)


def test_the_lowest_priority_then_the_youngest_is_preempted_and_rejoins_with_its_tokens() -> None:
    stage = SchedulerStage(num_blocks=9)
    rows = []
    for priority in (0, 1):
        stage.submit(priority=priority)
        rows.append(stage.run(10))
        stage.starve(rows[-1])
    low, high = rows
    stage.pop(GrantBlocks)
    stage.sampled(low, 30)
    stage.starve(high)  # 5 + 4 blocks are out, none is free
    assert stage.pop(RetireSlot) == [RetireSlot(*_key(low))]
    assert stage.pop(GrantBlocks) == []
    stage.fact(StepReport(step=4, retired=[low]))
    assert stage.pop(GrantBlocks)[0].slot == high.slot
    stage.sampled(high, 40, FinishReason.LENGTH)
    stage.fact(StepReport(step=5, finished=[high]))
    (join,) = stage.pop(JoinBatch)
    assert (join.slot, join.epoch, join.num_tokens) == (low.slot, low.epoch, 40)


def test_no_more_than_max_num_seqs_rows_join() -> None:
    stage = SchedulerStage(max_num_seqs=2)
    for _ in range(3):
        stage.submit()
    stage.encode_all()
    joins = stage.pop(JoinBatch)
    assert [join.slot for join in joins] == [0, 1]
    row = SlotEvent(0, 1)
    stage.sampled(row, 1, FinishReason.STOP)
    stage.fact(StepReport(step=1, finished=[row]))
    assert [join.slot for join in stage.pop(JoinBatch)] == [2]


def test_slots_go_by_priority_then_arrival() -> None:
    stage = SchedulerStage(num_slots=1)
    first = stage.submit()
    late = [stage.submit(), stage.submit(priority=5), stage.submit()]
    stage.pop(RequestAccepted)
    order = []
    for request_id in (first, late[1], late[0], late[2]):
        stage.client(CancelRequest(request_id))
        for encode in stage.pop(EncodePrompt):
            stage.fact(PromptEncoded(encode.slot, encode.epoch, 3))
            stage.text_finished(SlotEvent(encode.slot, encode.epoch), 0, FinishReason.CANCELLED)
        stage.client(AckFinished(request_id))
        order += [accepted.request_id for accepted in stage.pop(RequestAccepted)]
    assert order == [late[1], late[0], late[2]]


def test_a_full_backlog_is_refused_with_retry_after() -> None:
    stage = SchedulerStage(num_slots=1, max_num_seqs=1, backlog_limit=1)
    for _ in range(3):
        stage.submit()
    (final,) = stage.finals()
    assert final.error is not None
    assert final.error.code == "queue_full"
    assert final.error.fields["retry_after_s"] >= 1.0


@pytest.mark.parametrize("phase", ["encoding", "waiting", "prefill", "running"])
@pytest.mark.parametrize("how", ["cancel", "deadline", "reader"])
def test_a_request_can_be_ended_in_every_phase(phase: str, how: str) -> None:
    stage = SchedulerStage(max_num_seqs=1)
    if phase == "waiting":
        stage.submit()
        stage.run()
    request_id = stage.submit(timeout_s=5.0)
    (order,) = stage.pop(EncodePrompt)
    row = SlotEvent(order.slot, order.epoch)
    if phase != "encoding":
        stage.fact(PromptEncoded(row.slot, row.epoch, 10))
    if phase == "running":
        stage.fact(StepReport(step=1, prefilled=[row]))
        stage.sampled(row, 2)
    if how == "cancel":
        stage.client(CancelRequest(request_id))
    elif how == "deadline":
        stage.advance(5.0)
    else:
        stage.fact(ReaderLost(row.slot, row.epoch, ErrorInfo("slow_reader", "does not read")))
    assert stage.pop(CloseText) == [CloseText(*_key(row))]
    reason = FinishReason.ERROR if how == "deadline" else FinishReason.CANCELLED
    assert stage.table.load(row.slot, SlotWord.END_REASON) == reason
    if phase in ("prefill", "running"):
        assert stage.pop(RetireSlot) == [RetireSlot(*_key(row))]
        stage.fact(StepReport(step=2, retired=[row]))
    stage.text_finished(row, 2 if phase == "running" else 0, reason)
    (final,) = stage.finals()
    code = {"cancel": None, "deadline": "deadline_exceeded", "reader": "slow_reader"}[how]
    assert (final.error.code if final.error else None) == code
    assert final.finish_reason == reason.public_name
    if phase == "encoding":
        assert stage.state(row.slot) is not SlotState.FREE  # the tokenizer may still write
        stage.fact(PromptEncoded(row.slot, row.epoch, 10))
    stage.client(AckFinished(request_id))
    assert stage.state(row.slot) is SlotState.FREE


def test_a_deadline_does_not_wait_for_a_silent_detokenizer_or_gpu() -> None:
    stage = SchedulerStage()
    stage.submit(timeout_s=2.0)
    row = stage.run()
    stage.sampled(row, 3)
    stage.advance(2.0)
    assert stage.finals() == []
    stage.advance(0.5)
    assert stage.codes() == ["deadline_exceeded"]
    stage.advance(60.0)
    assert stage.state() is SlotState.FINISHED  # the gpu process may still touch its blocks
    stage.fact(StepReport(step=9, retired=[row]))
    assert stage.is_at_baseline()


def test_a_finish_that_came_before_the_cancel_wins() -> None:
    stage = SchedulerStage()
    request_id = stage.submit()
    row = stage.run()
    stage.sampled(row, 3, FinishReason.STOP)
    stage.client(CancelRequest(request_id))
    stage.fact(StepReport(step=2, finished=[row], retired=[row]))
    stage.text_finished(row, 3, FinishReason.STOP)
    assert [final.finish_reason for final in stage.finals()] == ["stop"]


def test_an_unconfirmed_end_frees_its_slot_after_the_ack_timeout() -> None:
    stage = SchedulerStage(ack_timeout_s=10.0)
    request_id = stage.submit()
    row = stage.run()
    stage.sampled(row, 1, FinishReason.STOP)
    stage.fact(StepReport(step=2, finished=[row]))
    stage.text_finished(row, 1, FinishReason.STOP)
    (final,) = stage.finals()
    stage.advance(9.9)
    assert stage.state() is SlotState.FINISHED
    stage.advance(0.2)
    assert stage.is_at_baseline()
    stage.submit(request_id=request_id)  # a late repeat learns how it ended
    assert stage.finals() == [final]


def test_a_stop_string_ends_a_row_that_the_sampler_has_not_seen_end() -> None:
    stage = SchedulerStage()
    stage.submit(stop=("x",))
    row = stage.run()
    stage.sampled(row, 4)
    stage.text_finished(row, 3, FinishReason.STOP_STRING)
    assert [final.finish_reason for final in stage.finals()] == ["stop"]
    assert stage.pop(RetireSlot) == [RetireSlot(*_key(row))]


def test_invalid_logits_are_a_typed_error() -> None:
    stage = SchedulerStage()
    stage.submit()
    row = stage.run()
    stage.table.store(0, SlotWord.FINISH, FinishReason.ERROR | 1 << 8 | 2 << 16)
    stage.fact(StepReport(step=2, finished=[row]))
    stage.text_finished(row, 2, FinishReason.ERROR)
    assert stage.codes() == ["invalid_logits"]


def test_a_repeated_submit_attaches_to_the_running_request() -> None:
    stage = SchedulerStage()
    request_id = stage.submit()
    first = stage.pop(RequestAccepted)
    stage.submit(request_id=request_id)
    assert stage.pop(RequestAccepted) == first
    assert len(stage.pop(EncodePrompt)) == 1


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"temperature": -1.0}, "invalid_request"),
        ({"stop_token_ids": (100,)}, "invalid_request"),
        ({"max_tokens": 128}, "context_length_exceeded"),
    ],
)
def test_bad_parameters_are_refused_at_once(params: dict[str, object], code: str) -> None:
    stage = SchedulerStage()
    stage.submit(**params)
    assert stage.codes() == [code]
    assert stage.pop(RequestAccepted) == []


@pytest.mark.parametrize(("num_blocks", "num_tokens"), [(32, 128), (2, 33), (32, 0)])
def test_a_prompt_that_does_not_fit_ends_after_encoding(num_blocks: int, num_tokens: int) -> None:
    stage = SchedulerStage(num_blocks=num_blocks)
    stage.submit()
    stage.encode_all(num_tokens)
    assert stage.codes() == ["context_length_exceeded" if num_tokens else "invalid_request"]
    assert stage.pop(JoinBatch) == []


@pytest.mark.parametrize("length", [0, 5, 17])
def test_names_of_another_length_are_refused(length: int) -> None:
    stage = SchedulerStage()
    stage.submit(request_id=b"r" * length or b"rr")
    order = SubmitRequest(request_id=bytes(16), prompt=TextPrompt("hello"), params=SamplingParams())
    stage.client(order, client_id=b"c" * length)
    assert stage.codes() == ["invalid_request"] * 2
    assert stage.is_at_baseline()


def test_cancel_of_an_unknown_request_is_a_typed_error_and_ack_is_ignored() -> None:
    stage = SchedulerStage()
    stage.client(CancelRequest(bytes(16)))
    assert stage.codes() == ["invalid_request"]
    stage.client(AckFinished(bytes(16)))
    assert stage.sent == []


def test_a_malformed_frame_is_counted_and_answered() -> None:
    stage = SchedulerStage()
    stage.scheduler.reject_malformed(CLIENT, bytes(16), InvalidRequest("unknown field"))
    stage.scheduler.reject_malformed(CLIENT, None, InvalidRequest("garbage"))
    stage.take()
    assert stage.codes() == ["invalid_request"]
    assert stage.scheduler.board_counters()["corrupt_frames"] == 2


def test_a_client_that_stays_unreachable_loses_its_requests() -> None:
    stage = SchedulerStage()
    stage.advance(20.0)
    stage.submit()
    (accepted,) = stage.pop(RequestAccepted)
    stage.scheduler.handle_unreachable(ToClient(CLIENT, accepted))
    assert stage.scheduler.tick() == pytest.approx(1.0)
    stage.advance(1.0)
    assert [final.finish_reason for final in stage.finals()] == ["cancelled"]


def test_a_dead_gateway_takes_the_requests_of_its_own_client_along_at_once() -> None:
    stage = SchedulerStage()
    for incarnation in (1, 2):
        order = SubmitRequest(
            request_id=incarnation.to_bytes(16, "big"),
            prompt=TextPrompt("hello"),
            params=SamplingParams(),
        )
        stage.client(order, client_id=gateway_prefix(0, incarnation).ljust(16, b"x"))
    stage.died("gateway", incarnation=1)
    ended = [(final.request_id[-1], final.finish_reason) for final in stage.finals()]
    assert ended == [(1, "cancelled")]


def test_clients_with_requests_are_knocked_at_so_that_their_absence_shows() -> None:
    stage = SchedulerStage()
    stage.advance(20.0)
    stage.submit()
    stage.submit()
    stage.scheduler.tick()
    stage.advance(1.0)
    (knock,) = stage.pop(HealthReport)
    assert knock.request_id == b""
    stage.scheduler.handle_unreachable(ToClient(CLIENT, knock))
    stage.advance(1.0)
    assert [final.finish_reason for final in stage.finals()] == ["cancelled"] * 2


def test_tokenize_goes_through_a_tokenizer_without_a_slot() -> None:
    stage = SchedulerStage()
    stage.client(TokenizePrompt(b"t" * 16, TextPrompt("hi")))
    (probe,) = stage.pop(EncodeProbe)
    stage.fact(ProbeEncoded(probe.probe_id, [1, 2]))
    stage.fact(ProbeEncoded(probe.probe_id, [9]))
    assert stage.pop(PromptTokenized) == [PromptTokenized(b"t" * 16, [1, 2])]
    stage.client(TokenizePrompt(b"u" * 16, IdsPrompt([1000])))
    (answer,) = stage.pop(PromptTokenized)
    assert answer.error is not None


def test_draining_refuses_new_work_finishes_and_cuts_at_the_limit() -> None:
    stage = SchedulerStage()
    done, cut = stage.submit(), stage.submit()
    rows = stage.encode_all()
    stage.fact(DrainTree(10.0))
    stage.submit()
    assert stage.codes() == ["draining"]
    stage.sampled(rows[0], 1, FinishReason.STOP)
    stage.fact(StepReport(step=1, finished=[rows[0]]))
    stage.text_finished(rows[0], 1, FinishReason.STOP)
    stage.client(AckFinished(done))
    assert stage.pop(TreeDrained) == []
    stage.advance(10.0)
    stage.fact(StepReport(step=2, retired=[rows[1]]))
    stage.text_finished(rows[1], 0, FinishReason.ERROR)
    assert stage.codes() == ["", "draining"]
    stage.client(AckFinished(cut))
    assert stage.pop(TreeDrained) == [TreeDrained(1)]


def test_an_empty_tree_is_drained_at_once() -> None:
    stage = SchedulerStage()
    stage.fact(DrainTree(10.0))
    assert stage.pop(TreeDrained) == [TreeDrained(0)]


def test_readiness_needs_every_role_and_a_recent_step() -> None:
    stage = SchedulerStage(has_workers=False)

    def status() -> str:
        stage.client(QueryHealth(bytes(16)))
        report = stage.pop(HealthReport)[-1]
        assert report.is_ready == (report.status in ("ready",))
        return report.status

    assert status() == "loading"
    stage.attach_all()
    stage.submit()
    row = stage.run()
    for _ in range(12):
        stage.advance(1.0)
    assert status().startswith("not ready: no step")
    stage.sampled(row, 1)
    assert status() == "ready"
    stage.died("detokenizer")
    assert status() == "not ready: no detokenizer"


def test_asking_for_health_does_not_pass_for_progress() -> None:
    stage = SchedulerStage()
    stage.submit()
    stage.run()
    for _ in range(12):
        stage.clock.advance(1.0)
        stage.scheduler.tick(gpu_progress=5)
        stage.scheduler.health()
    assert stage.scheduler.health().status.startswith("not ready: no step")


def _key(row: SlotEvent) -> tuple[int, int]:
    return row.slot, row.epoch
