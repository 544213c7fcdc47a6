from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.kvcache.block_pool import BlockPool
from hybridgen.kvcache.prefix_cache import PrefixCache

SIZE = 2
PROMPTS = st.lists(st.integers(0, 1), max_size=9)


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def blocks_of(cache: PrefixCache, tokens: bytes) -> list[tuple[int, bool]]:
    return [(entry.block, entry.is_ready) for entry in cache.find(tokens)]


def test_full_blocks_are_found_as_far_as_tokens_agree_and_ready_once_confirmed() -> None:
    pool = BlockPool(8, SIZE)
    cache = PrefixCache(pool)
    row = pool.allocate(3)
    cache.promise(ids(1, 2, 3, 4, 5), row, writer=7)
    assert blocks_of(cache, ids(1, 2, 3, 4, 5, 6)) == [(row[0], False), (row[1], False)]
    cache.confirm(row[:1], writer=7)
    assert blocks_of(cache, ids(1, 2, 3, 9)) == [(row[0], True)]
    assert blocks_of(cache, ids(2, 2, 3, 4)) == blocks_of(cache, ids(1)) == []


def test_the_same_block_behind_another_beginning_is_another() -> None:
    pool = BlockPool(8, SIZE)
    cache = PrefixCache(pool)
    one, other = pool.allocate(2), pool.allocate(2)
    cache.promise(ids(1, 1, 5, 5), one, writer=1)
    cache.promise(ids(2, 2, 5, 5), other, writer=2)
    assert blocks_of(cache, ids(2, 2, 5, 5)) == [(other[0], False), (other[1], False)]


def test_what_is_not_computed_is_taken_back_and_what_is_stays() -> None:
    pool = BlockPool(8, SIZE)
    cache = PrefixCache(pool)
    row = pool.allocate(2)
    cache.promise(ids(1, 2, 3, 4), row, writer=7)
    cache.confirm(row[:1], writer=7)
    cache.retract(row, writer=7)
    assert blocks_of(cache, ids(1, 2, 3, 4)) == [(row[0], True)]
    cache.confirm(row, writer=7)  # too late
    assert len(cache) == 1


def test_nobody_confirms_or_retracts_the_blocks_of_others() -> None:
    pool = BlockPool(8, SIZE)
    cache = PrefixCache(pool)
    row = pool.allocate(1)
    cache.promise(ids(1, 2), row, writer=7)
    cache.confirm(row, writer=8)
    cache.retract(row, writer=8)
    assert blocks_of(cache, ids(1, 2)) == [(row[0], False)]


def test_content_of_doubtful_worth_is_neither_found_nor_kept() -> None:
    pool = BlockPool(2, SIZE)
    cache = PrefixCache(pool)
    row = pool.allocate(2)
    cache.promise(ids(1, 2, 3, 4), row, writer=7)
    cache.confirm(row, writer=7)
    cache.distrust(row)
    pool.free(row)
    assert (len(cache), pool.num_kept, pool.num_free) == (0, 0, 2)


@given(st.lists(st.tuples(PROMPTS, st.integers(0, 3)), max_size=30))
def test_whatever_is_found_holds_those_very_tokens(steps: list[tuple[list[int], int]]) -> None:
    """Against a model that remembers what was written into each block."""
    pool = BlockPool(12, SIZE)
    cache = PrefixCache(pool)
    held: list[list[int]] = []
    written: dict[int, list[int]] = {}  # block → all tokens up to its end
    for tokens, number in steps:
        prompt = ids(*tokens)
        found = cache.find(prompt)
        shared = [entry.block for entry in found]
        for index, block in enumerate(shared):
            assert written[block] == tokens[: (index + 1) * SIZE]
        num_new = pool.blocks_for(len(tokens)) - len(shared)
        if num_new + pool.num_idle(shared) <= pool.num_free:
            pool.share(shared)
            row = shared + pool.allocate(num_new)
            for index in range(len(shared), len(row)):
                written[row[index]] = tokens[: (index + 1) * SIZE]
            cache.promise(prompt, row, writer=1)
            cache.confirm(row[: len(tokens) // SIZE], writer=1)
            held.append(row)
        if held and number:
            pool.free(held.pop(number % len(held)))
    for row in held:
        pool.free(row)
    assert pool.num_free == 12
    assert len(cache) == pool.num_kept


def test_nothing_is_entered_behind_blocks_that_are_not_the_rows_unless_they_are_known() -> None:
    pool = BlockPool(8, SIZE)
    cache = PrefixCache(pool)
    row = pool.allocate(3)
    text = ids(1, 2, 3, 4, 5, 6)
    cache.promise(text, row, writer=7, num_foreign=1)
    assert blocks_of(cache, text) == []
    cache.promise(text[:8], row, writer=7)
    cache.promise(text, row, writer=7, num_foreign=1)
    assert [block for block, _ in blocks_of(cache, text)] == row
