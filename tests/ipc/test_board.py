"""The board: identity, state, progress and counters of every process."""

from __future__ import annotations

import time

import pytest

from hybridgen.errors import InternalError
from hybridgen.ipc.board import COUNTER_NAMES, Board, ProcessState, Role


def test_an_unused_record_is_empty() -> None:
    assert Board.in_memory(2).snapshot(1).state is ProcessState.EMPTY


def test_a_snapshot_tells_what_the_process_wrote() -> None:
    board = Board.in_memory(3)
    line = board.line(1)
    line.begin(pid=12, start_ticks=34, role=Role.SAMPLER, index=5, incarnation=6)
    assert board.snapshot(1).state is ProcessState.STARTING
    line.set_state(ProcessState.READY)
    line.tick()
    line.tick(4)
    line.set_busy_until_ns(99)
    line.add("rows", 3)
    line.add("rows")
    line.set("stale_rows", 8)
    seen = board.snapshot(1)
    assert (seen.pid, seen.start_ticks, seen.role) == (12, 34, Role.SAMPLER)
    assert (seen.index, seen.incarnation, seen.state) == (5, 6, ProcessState.READY)
    assert (seen.progress, seen.busy_until_ns) == (5, 99)
    zeros = dict.fromkeys(COUNTER_NAMES[Role.SAMPLER], 0)
    assert seen.counters == {**zeros, "rows": 4, "stale_rows": 8}
    assert board.snapshot(0).state is board.snapshot(2).state is ProcessState.EMPTY


def test_the_last_progress_has_a_time() -> None:
    board = Board.in_memory(1)
    line = board.line(0)
    started_ns = time.monotonic_ns()
    line.begin(1, 1, Role.GPU, 0, 0)
    born_ns = board.snapshot(0).progress_ns
    assert born_ns >= started_ns
    line.tick(0)
    assert board.snapshot(0).progress_ns == born_ns
    line.tick()
    assert board.snapshot(0).progress_ns > born_ns


def test_a_new_incarnation_starts_from_zero() -> None:
    board = Board.in_memory(1)
    board.line(0).begin(1, 1, Role.GPU, 0, 0)
    board.line(0).add("steps", 3)
    board.line(0).tick()
    board.line(0).begin(2, 2, Role.TOKENIZER, 0, 1)
    seen = board.snapshot(0)
    zeros = dict.fromkeys(COUNTER_NAMES[Role.TOKENIZER], 0)
    assert (seen.progress, seen.counters) == (0, zeros)


def test_a_child_can_count_on_the_line_that_its_supervisor_began() -> None:
    board = Board.in_memory(1)
    child_line = board.line(0)
    board.line(0).begin(1, 1, Role.TOKENIZER, 0, 0)
    child_line.add("prompts")
    assert board.snapshot(0).counters["prompts"] == 1


@pytest.mark.parametrize("role", Role)
def test_every_counter_of_every_role_has_its_own_word(role: Role) -> None:
    board = Board.in_memory(1)
    line = board.line(0)
    line.begin(1, 1, role, 0, 0)
    for n, name in enumerate(COUNTER_NAMES[role], start=1):
        line.set(name, n)
    assert list(board.snapshot(0).counters.values()) == list(range(1, len(COUNTER_NAMES[role]) + 1))


def test_a_counter_of_another_role_is_refused_by_name() -> None:
    board = Board.in_memory(1)
    board.line(0).begin(1, 1, Role.GPU, 0, 0)
    with pytest.raises(InternalError, match="no such counter"):
        board.line(0).add("prompts")


def test_labels_name_roles() -> None:
    assert [Role.of(role.label) for role in Role] == list(Role)
    with pytest.raises(InternalError, match="no such role"):
        Role.of("chef")


def test_a_record_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InternalError, match="no such process"):
        Board.in_memory(1).line(1)
