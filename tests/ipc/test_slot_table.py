"""The slot table: words, ids, parameters, finish words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError
from hybridgen.ipc.slot_table import (
    PARAMETERS_BYTES,
    Finish,
    RowError,
    SlotTable,
    SlotWord,
    pack_finish,
    unpack_finish,
)
from hybridgen.request import FinishReason

WORDS = st.dictionaries(
    st.tuples(st.integers(0, 3), st.sampled_from(SlotWord)), st.integers(0, 2**64 - 1)
)


@given(WORDS)
def test_every_word_of_every_slot_is_its_own(words: dict[tuple[int, SlotWord], int]) -> None:
    table = SlotTable.in_memory(4, 64)
    for (slot, word), value in words.items():
        table.store(slot, word, value)
    for slot in range(4):
        for word in SlotWord:
            assert table.load(slot, word) == words.get((slot, word), 0)
        assert table.client_id(slot) == table.request_id(slot) == bytes(16)
        assert bytes(table.parameters(slot)) == bytes(PARAMETERS_BYTES)


def test_ids_and_parameters_stay_apart_from_the_words() -> None:
    table = SlotTable.in_memory(2, 64)
    table.set_ids(1, b"c" * 16, b"r" * 16)
    table.parameters(1)[:] = b"\xff" * PARAMETERS_BYTES
    assert (table.client_id(1), table.request_id(1)) == (b"c" * 16, b"r" * 16)
    assert all(table.load(slot, word) == 0 for slot in range(2) for word in SlotWord)
    assert table.client_id(0) == bytes(16)


def test_clearing_the_worker_lines_leaves_the_coschedulers_lines() -> None:
    table = SlotTable.in_memory(2, 64)
    for slot in range(2):
        for word in SlotWord:
            table.store(slot, word, 7)
    table.clear_worker_lines(0)
    cleared = {SlotWord.GENERATED, SlotWord.FINISH, SlotWord.STOP}
    assert {word for word in SlotWord if table.load(0, word) == 0} == cleared
    assert all(table.load(1, word) == 7 for word in SlotWord)


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_does_not_exist_is_refused(slot: int) -> None:
    table = SlotTable.in_memory(2, 64)
    with pytest.raises(InternalError, match="no such slot"):
        table.load(slot, SlotWord.STATE)


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(InternalError, match="length"):
        SlotTable.in_memory(1, 64).set_ids(0, b"short", b"r" * 16)


@given(st.sampled_from(FinishReason), st.sampled_from(RowError), st.integers(0, 2**31))
def test_a_finish_word_unpacks_to_what_was_packed(
    reason: FinishReason, row_error: RowError, num_tokens: int
) -> None:
    finish = Finish(reason, row_error, num_tokens)
    assert unpack_finish(pack_finish(finish)) == finish


def test_a_finish_word_with_an_unknown_reason_is_an_error() -> None:
    with pytest.raises(InternalError, match="finish word"):
        unpack_finish(99)
