from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.launch.chaos.check import MAX_MORE_FDS, client_counts, violations
from hybridgen.launch.chaos.history import History, Outcome, Piece, Record
from tests.launch.chaos.histories import REST, golden, record, whole_history


def found(history: History, *allowed: str) -> set[str]:
    return {violation.invariant for violation in violations(history, frozenset(allowed))}


def broken(breaks: Callable[[Record], None], number: int = 1, *allowed: str) -> set[str]:
    """What is found when one request of a whole history is broken."""
    history = whole_history()
    history.counted = None
    breaks(history.records[number])
    return found(history, *allowed)


def replaced(piece: Piece, **changes: object) -> Piece:
    return msgspec.structs.replace(piece, **changes)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), number=st.integers(0, 3))
def test_a_whole_history_has_no_violation(sizes: list[int], number: int) -> None:
    history = whole_history()
    history.records[number] = record(number, sizes=tuple(sizes))
    assert violations(history) == []


def test_a_request_without_an_end_is_found() -> None:
    assert "I1" in broken(lambda one: one.outcomes.clear())


def test_a_request_that_ends_twice_is_found() -> None:
    assert "I1" in broken(lambda one: one.outcomes.append(one.outcomes[0]))


def test_text_after_the_end_is_found() -> None:
    def breaks(one: Record) -> None:
        late_s = one.outcomes[0].at_s + 0.1
        one.pieces[-1] = replaced(one.pieces[-1], at_s=late_s)

    assert "I1" in broken(breaks)


def test_a_refused_request_need_not_end() -> None:
    history = whole_history()
    history.records.append(Record(0, 10.0, 70.0, is_accepted=False))
    history.counted = {**(history.counted or {}), "rejected": 1}
    assert found(history) == set()


@given(st.data())
def test_a_lost_piece_is_found(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(record(1).pieces) - 1))
    assert broken(lambda one: one.pieces.pop(at)) & {"I2", "I3"}


@given(st.data())
def test_a_piece_that_comes_twice_is_found(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(record(1).pieces) - 1))
    assert "I2" in broken(lambda one: one.pieces.insert(at, one.pieces[at]))


@given(st.data())
def test_a_gap_is_told_from_other_text(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(record(1).pieces) - 2))
    assert "I2" in broken(lambda one: one.pieces.pop(at))


@given(st.data())
def test_one_wrong_token_is_found(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(record(1).pieces) - 1))

    def breaks(one: Record) -> None:
        one.pieces[at] = replaced(one.pieces[at], ids=[9999] * len(one.pieces[at].ids))

    assert broken(breaks) == {"I3"}


@given(st.data())
def test_one_wrong_character_is_found(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(record(1).pieces) - 1))

    def breaks(one: Record) -> None:
        one.pieces[at] = replaced(one.pieces[at], text="?" + one.pieces[at].text[1:])

    assert "I3" in broken(breaks)


def test_text_that_is_cut_short_is_found_where_no_ids_come() -> None:
    def breaks(one: Record) -> None:
        one.has_ids = False
        one.pieces = [replaced(piece, ids=[]) for piece in one.pieces[:-1]]

    assert broken(breaks) == {"I3"}


def test_another_reason_to_end_is_found() -> None:
    def breaks(one: Record) -> None:
        one.outcomes[0] = msgspec.structs.replace(one.outcomes[0], finish_reason="stop")

    assert broken(breaks) == {"I3"}


def fails(one: Record) -> None:
    one.outcomes = [Outcome(one.outcomes[0].at_s, error="poison_request")]
    del one.pieces[3:]


def test_an_error_is_found_unless_it_is_allowed() -> None:
    assert broken(fails) == {"I3"}
    assert broken(fails, 1, "poison_request") == set()


def test_a_request_may_be_cut_within_a_character() -> None:
    def breaks(one: Record) -> None:
        fails(one)
        one.pieces.append(replaced(record(1).pieces[3], text="\ufffd"))

    assert broken(breaks, 1, "poison_request") == set()


def test_wrong_text_before_an_allowed_error_is_found() -> None:
    def breaks(one: Record) -> None:
        fails(one)
        one.pieces[1] = replaced(one.pieces[1], text="other text", ids=[9999])

    assert broken(breaks, 1, "poison_request") == {"I3"}


@pytest.mark.parametrize("field", ["num_tokens", "num_prompt_tokens"])
def test_wrong_usage_is_found(field: str) -> None:
    def breaks(one: Record) -> None:
        one.outcomes[0] = msgspec.structs.replace(one.outcomes[0], **{field: 3})

    assert broken(breaks) == {"I4"}


@given(at=st.integers(0, 15), has_ids=st.booleans())
def test_text_of_another_request_is_found(at: int, has_ids: bool) -> None:
    def breaks(one: Record) -> None:
        others = golden(2).ids[at : at + 5]
        ids = [*golden(1).ids[:at], *others, *golden(1).ids[at + 5 :]]
        one.has_ids = has_ids
        one.pieces = [
            Piece(10.0, f"<{token_id}>", [token_id] if has_ids else []) for token_id in ids
        ]

    assert {"I3", "I5"} <= broken(breaks)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_free_slots": 63},
        {"num_free_blocks": 999},
        {"num_zombies": 1},
        {"shm_names": ["hybridgen.1.ab"]},
        {"num_fds": {"gpu-0": 20 + MAX_MORE_FDS + 1}},
        {"num_threads": {"gpu-0": 4}},
    ],
)
def test_what_is_not_given_back_is_found(changes: dict[str, object]) -> None:
    history = whole_history()
    history.after = msgspec.structs.replace(REST, **changes)
    assert found(history) == {"I6"}


@given(st.data())
def test_a_count_that_differs_is_found(data: st.DataObject) -> None:
    history = whole_history()
    names = list(client_counts(history.records))
    name = data.draw(st.sampled_from(names))
    counted = dict(history.counted or {})
    counted[name] = counted.get(name, 0) + data.draw(st.sampled_from([-1, 1]))
    history.counted = counted
    assert found(history) == {"I7"}


def test_counts_of_a_server_that_began_again_are_not_compared() -> None:
    history = whole_history()
    history.counted = None
    assert found(history) == set()


def test_a_request_that_outlives_its_deadline_is_found() -> None:
    def late(one: Record) -> None:
        one.deadline_s = one.outcomes[0].at_s - 1.1

    def endless(one: Record) -> None:
        one.outcomes.clear()
        one.deadline_s = 10.5  # the history ends at 12

    assert broken(late) == {"I8"}
    assert {"I1", "I8"} == broken(endless)
