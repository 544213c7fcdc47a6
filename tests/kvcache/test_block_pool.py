from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError, OutOfBlocks
from hybridgen.kvcache.block_pool import BlockPool


@given(
    num_blocks=st.integers(0, 40),
    actions=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60),
)
def test_no_block_is_given_out_twice_and_all_come_back(
    num_blocks: int, actions: list[tuple[bool, int]]
) -> None:
    pool = BlockPool(num_blocks, 16)
    held: list[list[int]] = []
    for is_allocate, number in actions:
        if is_allocate:
            if number > pool.num_free:
                with pytest.raises(OutOfBlocks):
                    pool.allocate(number)
            else:
                held.append(pool.allocate(number))
                assert len(held[-1]) == number
        elif held:
            pool.free(held.pop(number % len(held)))
        taken = [block for blocks in held for block in blocks]
        assert len(set(taken)) == len(taken) == pool.num_taken
        assert all(0 <= block < num_blocks for block in taken)
        assert pool.num_free + pool.num_taken == num_blocks
    for blocks in held:
        pool.free(blocks)
    assert sorted(pool.allocate(num_blocks)) == list(range(num_blocks))


@given(taken=st.sets(st.integers(0, 19)))
def test_claimed_blocks_are_not_given_out(taken: set[int]) -> None:
    pool = BlockPool(20, 16)
    pool.claim([(sorted(taken), 0)])
    rest = pool.allocate(pool.num_free)
    assert set(rest) | taken == set(range(20))
    assert not set(rest) & taken


@pytest.mark.parametrize("blocks", [[3], [0, 0], [4], [-1]])
def test_a_bad_free_is_an_internal_error_and_frees_nothing(blocks: list[int]) -> None:
    pool = BlockPool(4, 16)
    pool.allocate(3)
    with pytest.raises(InternalError):
        pool.free(blocks)
    assert pool.num_free == 1


def test_freeing_twice_is_an_internal_error() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(2)
    pool.free(blocks)
    with pytest.raises(InternalError, match="freed twice"):
        pool.free(blocks)


def test_claiming_a_taken_block_is_an_internal_error() -> None:
    pool = BlockPool(4, 16)
    with pytest.raises(InternalError, match="two owners"):
        pool.claim([([1, 2], 0), ([2, 3], 0)])


def test_out_of_blocks_names_both_numbers_and_takes_nothing() -> None:
    pool = BlockPool(4, 16)
    with pytest.raises(OutOfBlocks) as caught:
        pool.allocate(5)
    assert (caught.value.fields["value"], caught.value.fields["limit"]) == (5, 4)
    assert pool.num_free == 4


def test_blocks_for_rounds_up() -> None:
    pool = BlockPool(4, 16)
    assert [pool.blocks_for(n) for n in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_a_shared_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    assert (pool.num_sole(blocks), pool.num_idle(blocks)) == (1, 0)
    pool.free(blocks)
    assert pool.num_taken == 1
    pool.free(blocks[:1])
    assert (pool.num_taken, pool.num_idle(blocks)) == (0, 2)


def test_kept_blocks_go_last_and_the_one_freed_longest_ago_first() -> None:
    pool = BlockPool(5, 16)
    lost: list[int] = []
    pool.on_lost = lost.append
    first, second = pool.allocate(2), pool.allocate(2)
    for block in (*first, *second):
        pool.keep(block)
    pool.free(first)
    pool.free(second)
    assert (pool.num_free, pool.num_kept) == (5, 4)
    assert pool.allocate(1) == [4]
    assert lost == []
    pool.share(first[:1])
    assert pool.allocate(3) == [first[1], second[1], second[0]] == lost
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)


def test_a_forgotten_block_is_free_like_any_other() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(2)
    pool.keep(blocks[0])
    pool.free(blocks)
    pool.forget(blocks[0])
    assert (pool.num_kept, pool.num_free) == (0, 2)
    with pytest.raises(InternalError, match="without content"):
        pool.share(blocks[:1])


SHARING_ROWS = [([1, 2, 3], 2), ([1, 4], 1)]


@pytest.mark.parametrize("row", [([2, 5], 0), ([3, 5], 1)], ids=["writes", "reads"])
def test_a_block_that_one_row_writes_has_no_other_owner(row: tuple[list[int], int]) -> None:
    with pytest.raises(InternalError, match="two owners"):
        BlockPool(6, 16).claim([*SHARING_ROWS, row])


def test_rows_may_claim_the_same_block_where_both_only_read_it() -> None:
    pool = BlockPool(6, 16)
    pool.claim(SHARING_ROWS)
    assert pool.num_taken == 4
    pool.free([1, 2, 3])
    pool.free([1, 4])
    assert pool.num_free == 6
