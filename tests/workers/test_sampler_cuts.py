"""A sampler whose rows come as cuts first, and complete later or never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridgen.ipc import _native
from hybridgen.ipc.logit_ring import Cut, CutState, RowHas, RowHeader
from hybridgen.messages import DrainWorker
from hybridgen.request import SamplingParams
from hybridgen.workers.sampler import Sampler
from tests.workers.steps import next_row, publish
from tests.workers.workplace import RING_DEPTH, Workplace

GREEDY = SamplingParams(temperature=0.0)


def publish_cuts(place: Workplace, step: int, rows: Sequence[tuple[RowHeader, int]]) -> None:
    """Publish a step as a device does: with a cut of each row, and without the rows."""
    ring = place.logits
    ring.write_rows(step, [row for row, _ in rows])
    np.asarray(ring.logits(step))[:] = np.nan
    for index, (_, top) in enumerate(rows):
        cut = Cut(CutState.CANDIDATES, -1, 50.0, 50.0, 0.0, 0.0, step, (50.0,), (top,))
        ring.write_cut(step, index, cut)
    _native.store(ring.buf, ring.ready_offset(step), step)
    _native.store(ring.buf, ring.latest_offset, step)


def complete(place: Workplace, step: int, tops: Sequence[int]) -> None:
    """The complete rows."""
    ring = place.logits
    logits = np.asarray(ring.logits(step)).reshape(ring.max_rows, -1)
    logits[:] = 0
    logits[np.arange(len(tops)), tops] = 50
    _native.store(ring.buf, ring.whole_offset(step), step)


def send_urgent(place: Workplace, step: int, tops: dict[int, int]) -> None:
    """Some complete rows, before the others."""
    ring = place.logits
    logits = np.asarray(ring.logits(step)).reshape(ring.max_rows, -1)
    for row, top in tops.items():
        logits[row] = 0
        logits[row, top] = 50
        _native.store(ring.buf, ring.urgent_offset(step, row), step)


class WatchedLane:
    """A lane at whose second look for complete rows something happens."""

    def __init__(self, sampler: Sampler, happen: Callable[[int], None]) -> None:
        self._lane = sampler._native
        self._happen = happen
        self.waited: list[int] = []
        sampler._native = self  # type: ignore[assignment]

    def await_rows(self, step: int, spin_us: int, timeout_us: int) -> bool:
        self.waited.append(step)
        if len(self.waited) == 2:
            self._happen(step)
        return self._lane.await_rows(step, spin_us, timeout_us)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)


def two_rows(place: Workplace) -> list[tuple[RowHeader, int]]:
    """One row with a cut, and one without."""
    for slot in (0, 1):
        place.fill_slot(slot, GREEDY, [1])
    first = next_row(place, 0)._replace(flags=RowHas.CUT)
    return [(first, 65), (next_row(place, 1), 66)]


def test_rows_with_a_cut_are_answered_without_the_complete_rows(cut_workplace: Workplace) -> None:
    place = cut_workplace
    sampler = Sampler(place.context("sampler-0"))
    place.fill_slot(0, GREEDY, [1])
    publish_cuts(place, 1, [(next_row(place, 0)._replace(flags=RowHas.CUT), 65)])
    sampler.turn(0)
    assert place.output(0) == [65]
    assert place.sampled.done(1, 0) == 1
    counters = place.snapshot("sampler-0").counters
    assert (counters["rows"], counters["tokens"], counters["cut_rows"]) == (1, 1, 1)


def test_the_other_rows_are_done_once_they_are_complete(cut_workplace: Workplace) -> None:
    place = cut_workplace
    sampler = Sampler(place.context("sampler-0"))
    publish_cuts(place, 1, two_rows(place))
    bell = place.bells["detokenizer-0"]
    seen: list[tuple[list[int], int, bool]] = []

    def happen(step: int) -> None:
        seen.append((place.output(0), place.sampled.done(1, 0), bool(bell.clear())))
        complete(place, step, [70, 66])

    WatchedLane(sampler, happen)
    sampler.turn(0)
    assert seen == [([65], 0, True)]  # the first token is out, though the lane is not done
    assert place.sampled.results(1, 2) == [(65, 0), (66, 0)]
    assert bell.clear()
    counters = place.snapshot("sampler-0").counters
    assert (counters["rows"], counters["tokens"], counters["cut_rows"]) == (2, 2, 1)


def test_urgent_rows_are_done_before_the_others_are_complete(cut_workplace: Workplace) -> None:
    place = cut_workplace
    sampler = Sampler(place.context("sampler-0"))
    for slot in (0, 1):
        place.fill_slot(slot, GREEDY, [1])
    publish_cuts(place, 1, [(next_row(place, 0), 65), (next_row(place, 1), 66)])
    seen: list[list[list[int]]] = []

    def happen(step: int) -> None:
        seen.append([place.output(slot) for slot in (0, 1)])
        complete(place, step, [68, 69])

    lane = WatchedLane(sampler, happen)
    send_urgent(place, 1, {1: 67})
    sampler.turn(0)
    assert seen == [[[], [67]]]
    assert lane.waited == [1, 1]
    assert place.sampled.results(1, 2) == [(68, 0), (67, 0)]


def test_a_host_that_publishes_complete_rows_is_not_waited_for(cut_workplace: Workplace) -> None:
    sampler = Sampler(cut_workplace.context("sampler-0"))
    lane = WatchedLane(sampler, lambda _step: None)
    cut_workplace.fill_slot(0, GREEDY, [1])
    publish(cut_workplace, 1, [(next_row(cut_workplace, 0), 65)])
    sampler.turn(0)
    assert cut_workplace.output(0) == [65]
    assert lane.waited == []


def test_the_wait_ends_with_the_drain_order(cut_workplace: Workplace) -> None:
    place = cut_workplace
    context = place.context("sampler-0")
    sampler = Sampler(context)
    publish_cuts(place, 1, two_rows(place))
    place.order("sampler-0", DrainWorker())
    sampler.turn(0)
    assert context.should_exit
    assert [place.output(slot) for slot in (0, 1)] == [[65], []]
    assert place.sampled.done(1, 0) == 0


def test_the_wait_ends_when_the_ring_is_retired(cut_workplace: Workplace) -> None:
    place = cut_workplace
    sampler = Sampler(place.context("sampler-0"))
    publish_cuts(place, 1, two_rows(place))
    WatchedLane(sampler, lambda _step: place.replace_ring(["sampler-0"]))
    sampler.turn(0)
    assert [place.output(slot) for slot in (0, 1)] == [[65], []]
    sampler.turn(0)
    publish(place, 1, [(next_row(place, 1), 66)])
    sampler.turn(0)
    assert place.output(1) == [66]


def test_the_wait_ends_when_the_place_is_being_reused(cut_workplace: Workplace) -> None:
    place = cut_workplace
    sampler = Sampler(place.context("sampler-0"))
    publish_cuts(place, 1, two_rows(place))
    WatchedLane(sampler, lambda _step: place.logits.begin(1 + RING_DEPTH))
    sampler.turn(0)
    assert place.output(1) == []
