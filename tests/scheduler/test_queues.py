from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.scheduler.queues import RequestQueue


@dataclasses.dataclass(frozen=True)
class Item:
    rank: tuple[int, int]


def drain(queue: RequestQueue[Item]) -> list[tuple[int, int]]:
    ranks = []
    while (item := queue.pop()) is not None:
        ranks.append(item.rank)
    return ranks


@given(st.lists(st.tuples(st.sampled_from("pPrx"), st.integers(0, 3), st.integers(0, 9))))
def test_order_is_by_rank_through_any_pushes_and_removals(
    actions: list[tuple[str, int, int]],
) -> None:
    queue: RequestQueue[Item] = RequestQueue()
    model: set[tuple[int, int]] = set()
    for action, priority, arrival in actions:
        item = Item((-priority, arrival))
        if action in "pP":
            queue.push(item)
            model.add(item.rank)
        elif action == "r":
            assert queue.remove(item) == (item.rank in model)
            model.discard(item.rank)
        elif model:
            popped = queue.pop()
            assert popped is not None
            assert popped.rank == min(model)
            model.remove(popped.rank)
        assert len(queue) == len(model)
        head = queue.peek()
        assert (None if head is None else head.rank) == min(model, default=None)
    assert drain(queue) == sorted(model)


def test_removals_do_not_pile_up() -> None:
    queue: RequestQueue[Item] = RequestQueue()
    for arrival in range(10_000):
        queue.push(Item((0, arrival)))
        queue.remove(Item((0, arrival)))
    assert len(queue._heap) < 200
