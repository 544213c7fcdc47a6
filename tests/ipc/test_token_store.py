"""The token store against plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError
from hybridgen.ipc.token_store import TokenStore

NUM_SLOTS, MAX_LEN = 3, 32


@st.composite
def writes(draw: st.DrawFn) -> list[tuple[int, int, list[int]]]:
    one = st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(0, MAX_LEN))
    ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=MAX_LEN)
    pairs = draw(st.lists(st.tuples(one, ids), max_size=10))
    return [(slot, start, some[: MAX_LEN - start]) for (slot, start), some in pairs]


@given(writes())
def test_rows_hold_what_was_written_last(all_writes: list[tuple[int, int, list[int]]]) -> None:
    store = TokenStore.in_memory(NUM_SLOTS, MAX_LEN)
    expected = [[0] * MAX_LEN for _ in range(NUM_SLOTS)]
    for slot, start, ids in all_writes:
        store.write(slot, start, ids)
        expected[slot][start : start + len(ids)] = ids
    for slot in range(NUM_SLOTS):
        assert store.read(slot, 0, MAX_LEN) == expected[slot] == store.row(slot).tolist()


@pytest.mark.parametrize(("slot", "start"), [(0, 31), (0, -1), (NUM_SLOTS, 0), (-1, 0)])
def test_ids_outside_a_row_are_refused(slot: int, start: int) -> None:
    store = TokenStore.in_memory(NUM_SLOTS, MAX_LEN)
    with pytest.raises(InternalError):
        store.write(slot, start, [1, 2])
    assert all(store.read(s, 0, MAX_LEN) == [0] * MAX_LEN for s in range(NUM_SLOTS))


def test_an_id_that_is_no_int32_is_refused() -> None:
    with pytest.raises(OverflowError):
        TokenStore.in_memory(1, 8).write(0, 0, [2**31])


def test_a_row_is_a_live_view() -> None:
    store = TokenStore.in_memory(NUM_SLOTS, MAX_LEN)
    row = store.row(1)
    store.write(1, 4, [9])
    assert (row.format, row[4]) == ("i", 9)
