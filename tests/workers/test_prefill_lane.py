"""When pieces of prefill begin and steps may go, with an engine that is told when it is through."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from hybridgen.config import Config, DeviceSection
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import JoinBatch
from hybridgen.models.device_engine import PromptChunk
from hybridgen.scheduler import prefill_budget
from hybridgen.scheduler.device_batch import DeviceBatch
from hybridgen.workers.prefill_lane import LAYERS_AT_ONCE, LAYERS_BETWEEN_POLLS, PrefillLane

NUM_LAYERS = 8
MAX_CHUNK = 256
MAX_ROWS = 32
PIECE_MS = 10.0


class Run:
    def __init__(self, chunks: Sequence[PromptChunk]) -> None:
        self.chunks = chunks
        self.calls: list[int] = []
        self.is_through = False

    def advance(self, num_layers: int = 1) -> bool:
        self.calls.append(num_layers)
        return sum(self.calls) < NUM_LAYERS

    def is_done(self) -> bool:
        return self.is_through

    def device_ms(self) -> float:
        return PIECE_MS


class Engine:
    max_chunk = MAX_CHUNK

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def has_room(self) -> bool:
        return sum(not run.is_through for run in self.runs) < 2

    def prefill(self, chunks: Sequence[PromptChunk]) -> Run:
        self.runs.append(Run(chunks))
        return self.runs[-1]


class Line:
    def __init__(self) -> None:
        self.counters: dict[str, int] = {}

    def add(self, name: str, value: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + value

    def tick(self) -> None:
        self.add("ticks", 1)


class Stage:
    """A lane and its batch; ``num_out`` pieces are begun and enqueued at once."""

    def __init__(self, budget_ms: float = PIECE_MS) -> None:
        config = Config(device=DeviceSection(prefill_budget_ms=budget_ms))
        self.line = Line()
        self.engine = Engine()
        self.tokens = TokenStore.in_memory(MAX_ROWS, 1024)
        self.batch = DeviceBatch(
            max_rows=MAX_ROWS, block_size=16, max_model_len=1024, num_lanes=1, num_logits_slots=8
        )
        context = SimpleNamespace(line=self.line, spec=SimpleNamespace(config=config))
        self.lane = PrefillLane(context, self.engine, self.batch, self.tokens, 1 << 20)  # type: ignore[arg-type]
        self.step = 0

    def join(self, *lengths: int, first: int = 0) -> None:
        for slot, length in enumerate(lengths, start=first):
            self.tokens.write(slot, 0, [slot * 1000 + i for i in range(length)])
            blocks = list(range(slot * 64, slot * 64 + 64))
            self.batch.join(JoinBatch(slot, 1, 0, length, 0, blocks))

    def send(self) -> None:
        """Begin what may begin."""
        for _ in range(5):
            self.lane.begin()
            while self.lane.is_sending:
                self.lane.advance()

    def finish(self) -> None:
        """The oldest piece is through."""
        next(run for run in self.engine.runs if not run.is_through).is_through = True
        self.lane.collect()

    def take_step(self) -> None:
        """Plan, enqueue and complete a step."""
        self.step += 1
        plan = self.batch.plan_step(self.step)
        assert plan is not None
        self.lane.step_begun()
        self.lane.step_done()
        zeros = plan.records["lane"] * 0
        self.batch.complete(self.step, zeros, zeros)

    @property
    def sizes(self) -> list[int]:
        return [sum(len(chunk.ids) for chunk in run.chunks) for run in self.engine.runs]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_piece_has_the_tokens_of_its_prompts(stage):
    stage.join(100, 90)
    stage.send()
    (run,) = stage.engine.runs
    assert [chunk.ids.tolist() for chunk in run.chunks] == [
        list(range(100)),
        list(range(1000, 1090)),
    ]
    assert [chunk.start for chunk in run.chunks] == [0, 0]
    assert len({chunk.logits_slot for chunk in run.chunks}) == 2
    stage.lane.collect()
    assert stage.lane.is_out
    stage.finish()
    assert not stage.lane.is_out
    assert stage.line.counters == {"ticks": 1, "prefill_tokens": 190, "prefill_ns": 10_000_000}


def test_layers_go_several_at_once_unless_the_host_is_waited_for(stage):
    stage.join(10)
    stage.lane.begin()
    stage.lane.advance(is_host_free=False)
    stage.lane.advance()
    assert stage.engine.runs[0].calls == [LAYERS_BETWEEN_POLLS, LAYERS_AT_ONCE]
    stage.finish()  # not collected: its last layers are not enqueued
    assert stage.lane.is_out
    stage.lane.advance()
    stage.lane.collect()
    assert not stage.lane.is_out


def test_pieces_follow_each_other_while_nothing_runs(stage):
    stage.join(*[128] * 8)
    stage.send()
    assert stage.sizes == [256, 256]
    stage.finish()
    stage.send()
    assert stage.sizes == [256] * 3


def test_a_crowd_of_prompts_lets_one_step_go_for_each_piece(stage, monkeypatch):
    monkeypatch.setattr(prefill_budget, "CROWDED_PIECES", 1)
    stage.join(*[128] * 20)
    stage.send()
    assert stage.lane.lets_step()  # nothing runs
    stage.finish()
    for num_done in range(2, 7):
        assert stage.lane.lets_step()
        stage.take_step()
        stage.send()
        assert not stage.lane.lets_step()
        stage.finish()
        assert len([run for run in stage.engine.runs if run.is_through]) == num_done


def test_few_prompts_hold_no_step_and_stay_within_the_budget():
    stage = Stage(budget_ms=PIECE_MS * 0.5)
    stage.join(*[128] * 8)
    for _ in range(4):
        stage.send()
        stage.finish()
    stage.take_step()
    stage.join(250, 200, first=8)
    stage.take_step()
    assert stage.batch.num_running == 8
    stage.engine.runs.clear()
    stage.send()
    assert stage.lane.is_out
    assert stage.lane.lets_step()
    num_before = sum(stage.sizes)
    assert 0 < num_before <= MAX_CHUNK
    stage.send()
    assert sum(stage.sizes) == num_before
