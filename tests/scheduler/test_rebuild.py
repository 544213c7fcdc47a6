"""A new coscheduler finds requests in every state, with all that they were asked with."""

from __future__ import annotations

from hybridgen.ipc.slot_table import SlotState
from hybridgen.messages import (
    AckFinished,
    BatchRow,
    EncodePrompt,
    JoinBatch,
    SlotEvent,
    StepReport,
)
from hybridgen.request import ChatPrompt, FinishReason, Grammar, SamplingParams
from hybridgen.sampling import parameters
from tests.support.scheduler_stage import SchedulerStage, ToWorker

GRAMMAR = Grammar("regex", "[a-z]+")
TOOLS_PROMPT = ChatPrompt.of(
    [{"role": "user", "content": "What is the weather?"}],
    [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}],
)


def params_in(stage: SchedulerStage, slot: int) -> SamplingParams:
    table = stage.table
    return parameters.unpack(table.parameters(slot), table.grammar(slot))[0]


class Everything:
    """One request in each state; two rows fill the batch."""

    def __init__(self) -> None:
        stage = self.stage = SchedulerStage(num_slots=6, max_num_seqs=2)
        self.finished_id = stage.submit()
        self.finished = stage.run()
        stage.sampled(self.finished, 5, FinishReason.LENGTH)
        stage.fact(StepReport(step=2, finished=[self.finished]))
        stage.text_finished(self.finished, 5)
        self.running_id = stage.submit(grammar=GRAMMAR, seed=3, stop=["x"])
        self.running = stage.run()
        stage.sampled(self.running, 7)
        self.prefill_id = stage.submit(TOOLS_PROMPT)
        (self.prefill,) = stage.encode_all(20)
        self.waiting_id = stage.submit(TOOLS_PROMPT, grammar=GRAMMAR)
        (self.waiting,) = stage.encode_all(30)
        self.encoding_id = stage.submit(TOOLS_PROMPT, grammar=GRAMMAR, max_tokens=9)
        self.encoding = SlotEvent(4, 1)
        stage.sent.clear()

    def restart(self) -> None:
        stage = self.stage
        stage.restart()
        rows = [
            BatchRow(*_key(self.running), 16, [1, 2, 3]),
            BatchRow(*_key(self.prefill), 5, [4, 5, 6]),
        ]
        stage.attach_all(rows=rows)

    def states(self) -> list[SlotState]:
        rows = (self.finished, self.running, self.prefill, self.waiting, self.encoding)
        return [self.stage.state(row.slot) for row in rows]


STATES = [
    SlotState.FINISHED,
    SlotState.RUNNING,
    SlotState.PREFILL,
    SlotState.WAITING,
    SlotState.ENCODING,
]


def test_every_state_is_found_as_it_was() -> None:
    tree = Everything()
    assert tree.states() == STATES
    tree.restart()
    assert tree.states() == STATES
    assert tree.stage.pop(JoinBatch) == []  # the batch is full, as before
    report = tree.stage.scheduler.health()
    assert (report.num_running, report.num_free_slots) == (2, 1)
    for row in (tree.running, tree.waiting, tree.encoding):
        assert params_in(tree.stage, row.slot).grammar == GRAMMAR


def test_each_of_them_goes_on_to_its_end() -> None:
    tree = Everything()
    tree.restart()
    stage = tree.stage
    # Its prompt lay in no shared memory: the client repeats it, tools, grammar and all.
    stage.submit(TOOLS_PROMPT, request_id=tree.encoding_id, grammar=GRAMMAR, max_tokens=9)
    (order,) = stage.pop(EncodePrompt)
    assert (order.prompt, order.grammar) == (TOOLS_PROMPT, GRAMMAR)
    stage.sent.append(_to_worker(order))
    stage.encode_all(40)
    stage.fact(StepReport(step=9, prefilled=[tree.prefill]))
    for row, num_tokens in ((tree.running, 9), (tree.prefill, 4)):
        _finish(stage, row, num_tokens)
    joined = stage.pop(JoinBatch)
    assert [(join.slot, join.num_tokens) for join in joined] == [
        (tree.waiting.slot, 30),
        (tree.encoding.slot, 40),
    ]
    for row in (tree.waiting, tree.encoding):
        _finish(stage, row, 3)
    stage.text_finished(tree.finished, 5)  # the detokenizer was told of it again
    finals = {final.request_id: final for final in stage.finals()}
    assert {name: final.num_tokens for name, final in finals.items()} == {
        tree.finished_id: 5,
        tree.running_id: 9,
        tree.prefill_id: 4,
        tree.waiting_id: 3,
        tree.encoding_id: 3,
    }
    assert {final.finish_reason for final in finals.values()} == {"length"}
    for name in finals:
        stage.client(AckFinished(name))
    assert stage.is_at_baseline()


def test_a_second_restart_in_between_changes_nothing() -> None:
    tree = Everything()
    tree.restart()
    tree.restart()
    assert tree.states() == STATES


def _finish(stage: SchedulerStage, row: SlotEvent, num_tokens: int) -> None:
    stage.sampled(row, num_tokens, FinishReason.LENGTH)
    stage.fact(StepReport(step=10, finished=[row]))
    stage.text_finished(row, num_tokens)


def _to_worker(order: EncodePrompt) -> ToWorker:
    return ToWorker("tokenizer-0", order)


def _key(row: SlotEvent) -> tuple[int, int]:
    return row.slot, row.epoch
