"""How waiting prompts are packed into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.scheduler.device_row import MAX_CONTINUED, DeviceRow
from hybridgen.scheduler.prefill_queue import PrefillQueue


def make_row(
    slot: int, num_tokens: int, num_computed: int = 0, num_covered: int | None = None
) -> DeviceRow:
    covered = num_tokens if num_covered is None else num_covered
    return DeviceRow(slot, 1, 0, num_tokens, num_computed, num_computed, covered, [])


def queue_of(*sizes: int) -> PrefillQueue:
    queue = PrefillQueue()
    for slot, size in enumerate(sizes):
        queue.add(make_row(slot, size))
    return queue


def take(queue: PrefillQueue, max_tokens: int, max_last: int = 99) -> list[tuple[int, int, int]]:
    return [(row.slot, start, stop) for row, start, stop in queue.take(max_tokens, max_last)]


def test_prompts_that_fit_together_are_one_piece():
    queue = queue_of(512, 512, 512, 512, 512)
    assert take(queue, 2048) == [(slot, 0, 512) for slot in range(4)]
    assert take(queue, 2048) == [(4, 0, 512)]
    assert take(queue, 2048) == []


def test_a_prompt_that_fits_into_the_next_piece_is_not_split_for_a_piece_half_full():
    queue = queue_of(1100, 1000, 40)
    assert take(queue, 2048) == [(0, 0, 1100)]
    assert take(queue, 2048) == [(1, 0, 1000), (2, 0, 40)]


def test_a_prompt_fills_a_piece_less_than_half_full_and_its_rest_goes_first():
    queue = queue_of(900, 1500, 600)
    assert take(queue, 2048) == [(0, 0, 900), (1, 0, 1148)]
    assert take(queue, 2048) == [(1, 1148, 1500), (2, 0, 600)]


def test_long_prompts_are_split_and_take_turns():
    queue = queue_of(5000, 3000)
    assert take(queue, 2048) == [(0, 0, 2048)]
    assert take(queue, 2048) == [(1, 0, 2048)]
    assert take(queue, 2048) == [(1, 2048, 3000), (0, 2048, 3144)]
    assert take(queue, 2048) == [(0, 3144, 5000)]


def test_a_small_rest_of_a_piece_takes_no_part_of_a_long_prompt():
    queue = queue_of(1900, 5000)
    assert take(queue, 2048) == [(0, 0, 1900)]
    assert take(queue, 2048) == [(1, 0, 2048)]


def test_nobody_overtakes_a_prompt_that_waits_for_a_logits_buffer():
    queue = queue_of(10, 20, 5000)
    assert take(queue, 2048, 1) == [(0, 0, 10)]
    assert take(queue, 2048, 0) == []
    assert take(queue, 2048, 2) == [(1, 0, 20), (2, 0, 2028)]


def test_a_piece_goes_on_with_few_prompts():
    queue = PrefillQueue()
    for slot in range(MAX_CONTINUED + 2):
        queue.add(make_row(slot, 30, num_computed=16))
    assert len(take(queue, 2048)) == MAX_CONTINUED
    assert len(take(queue, 2048)) == 2


def test_a_row_that_is_gone_is_not_given_out():
    queue = queue_of(10)
    row = make_row(5, 40)
    queue.add(row)
    queue.discard(row)
    queue.discard(row)
    assert (queue.num_tokens, len(queue)) == (10, 1)
    assert take(queue, 64) == [(0, 0, 10)]


@given(
    sizes=st.lists(st.integers(1, 300), max_size=30),
    limits=st.lists(st.tuples(st.integers(1, 128), st.integers(0, 8)), max_size=20),
)
def test_no_token_is_lost_or_doubled_and_limits_are_kept(sizes, limits):
    queue = queue_of(*sizes)
    num_done = dict.fromkeys(range(len(sizes)), 0)
    finished: list[int] = []
    for max_tokens, max_last in [*limits, *[(64, 8)] * (sum(sizes) + 1)]:
        parts = queue.take(max_tokens, max_last)
        assert sum(stop - start for _, start, stop in parts) <= max_tokens
        assert len({row.slot for row, _, _ in parts}) == len(parts)
        assert sum(start > 0 for _, start, _ in parts) <= MAX_CONTINUED
        assert sum(stop == row.num_tokens for row, _, stop in parts) <= max_last
        for row, start, stop in parts:
            assert start == num_done[row.slot]
            assert stop > start
            num_done[row.slot] = stop
            if stop == row.num_tokens:
                finished.append(row.slot)
        assert queue.num_tokens == sum(sizes) - sum(num_done.values())
        # Only the last part may be cut short.
        assert all(stop == row.num_tokens for row, _, stop in parts[:-1])
        if not parts:
            assert not len(queue) or max_last == 0
        if not len(queue):
            break
    assert list(num_done.values()) == sizes
    assert sorted(finished) == list(range(len(sizes)))


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_prompts_of_at_most_a_piece_come_in_order_and_whole_or_at_a_piece_half_empty(sizes):
    queue = queue_of(*sizes)
    order: list[int] = []
    while parts := queue.take(64, 64):
        num_before = 0
        for row, start, stop in parts:
            if stop < row.num_tokens:
                assert num_before < 32
            if start == 0:
                order.append(row.slot)
            num_before += stop - start
        if queue.num_tokens:
            assert num_before >= 32
    assert order == list(range(len(sizes)))


def test_a_prompt_is_given_out_as_far_as_its_blocks_go_and_then_makes_room_for_others():
    queue = PrefillQueue()
    row = make_row(0, 100, num_covered=32)
    queue.add(row)
    queue.add(make_row(1, 10))
    assert (queue.num_tokens, take(queue, 64, max_last=0)) == (42, [(0, 0, 32)])
    assert take(queue, 64) == [(1, 0, 10)]
    assert (len(queue), queue.num_tokens) == (0, 0)
    queue.cover(row, 64)
    queue.cover(row, 100)
    assert (len(queue), queue.num_tokens) == (1, 68)
    assert take(queue, 68, max_last=0) == []  # it would be the prompt's last part
    assert take(queue, 68) == [(0, 32, 100)]
