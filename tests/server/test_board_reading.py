"""The board as the metrics page reads it."""

from __future__ import annotations

import pytest

from hybridgen.ipc.board import Board, ProcessState, Role
from hybridgen.server.board_reading import WINDOW_S, BoardReader
from tests.support.fake_clock import FakeClock

NAMES = ["supervisor-0", "gpu-0", "sampler-0", "sampler-1"]


class Stage:
    """A small tree's board, and a clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.board = Board.in_memory(len(NAMES))
        for i, name in enumerate(NAMES):
            role, _, index = name.partition("-")
            self.board.line(i).begin(100 + i, 1, Role.of(role), int(index), 1)
            self.board.line(i).set_state(ProcessState.READY)
        self.gpu = self.board.line(1)
        self.reader = BoardReader(self.board, NAMES, self.clock)

    def steps(self, num: int, step_ms: int, wait_us: int) -> None:
        self.gpu.add("steps", num)
        self.gpu.add("step_ns", num * step_ms * 10**6)
        self.gpu.add("sample_wait_ns", num * wait_us * 10**3)
        self.gpu.tick(num)

    def second(self) -> None:
        self.clock.advance(1.0)
        self.reader.look()


def test_totals_are_sums_over_a_pool() -> None:
    stage = Stage()
    stage.board.line(2).add("tokens", 3)
    stage.board.line(3).add("tokens", 4)
    assert stage.reader.read().total(Role.SAMPLER, "tokens") == 7


def test_utilization_and_wait_are_of_the_last_seconds_only() -> None:
    stage = Stage()
    stage.second()
    for _ in range(4):
        stage.steps(50, step_ms=10, wait_us=80)
        stage.second()
    reading = stage.reader.read()
    assert reading.gpu_utilization == pytest.approx(0.5)
    assert reading.cpu_wait_us == pytest.approx(80)
    for _ in range(round(WINDOW_S) + 1):
        stage.second()
    reading = stage.reader.read()
    assert (reading.gpu_utilization, reading.cpu_wait_us) == (0.0, 0.0)


def test_a_replaced_gpu_process_begins_anew() -> None:
    stage = Stage()
    stage.steps(50, step_ms=10, wait_us=80)
    stage.second()
    stage.gpu.begin(200, 1, Role.GPU, 0, 2)
    stage.second()
    assert stage.reader.read().gpu_utilization == 0.0
    stage.steps(10, step_ms=100, wait_us=0)
    stage.second()
    assert stage.reader.read().gpu_utilization == pytest.approx(1.0)


def test_progress_age_grows_while_nothing_moves() -> None:
    stage = Stage()
    stage.steps(1, 1, 1)
    stage.second()
    for _ in range(3):
        stage.second()
    ages = {process.name: process.progress_age_s for process in stage.reader.read().processes}
    assert ages["gpu-0"] == pytest.approx(3.0)
    stage.steps(1, 1, 1)
    assert stage.reader.read().processes[1].progress_age_s == 0.0


@pytest.mark.parametrize(
    ("state", "is_up"),
    [(ProcessState.STARTING, False), (ProcessState.DRAINING, True), (ProcessState.EXITED, False)],
)
def test_a_process_is_up_while_it_serves(state: ProcessState, is_up: bool) -> None:
    stage = Stage()
    stage.gpu.set_state(state)
    assert stage.reader.read().processes[1].is_up is is_up


def test_histograms_of_a_pool_are_added() -> None:
    names = ["detokenizer-0", "detokenizer-1"]
    board = Board.in_memory(2)
    for i in range(2):
        board.line(i).begin(1, 1, Role.DETOKENIZER, i, 1)
        board.line(i).histograms()["ttft"].observe_s(0.5, i + 1)
    counts = BoardReader(board, names).read().histograms["ttft"]
    assert (counts.num_values, counts.sum) == (3, 1_500_000_000)
