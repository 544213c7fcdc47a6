"""One lane: steps in, tokens out; a replacement repeats what its predecessor left."""

from __future__ import annotations

import pytest

from hybridgen.errors import InternalError
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.messages import DrainWorker
from hybridgen.request import SamplingParams
from hybridgen.workers.sampler import Sampler
from tests.workers.steps import next_row, publish
from tests.workers.workplace import NUM_SLOTS, RING_DEPTH, Workplace

GREEDY = SamplingParams(temperature=0.0)


def born(place: Workplace, *, incarnation: int = 1) -> Sampler:
    return Sampler(place.context("sampler-0", incarnation=incarnation))


def rows_done(place: Workplace, name: str = "sampler-0") -> int:
    return place.snapshot(name).counters["rows"]


def test_does_its_rows_of_a_step_and_says_so(workplace: Workplace) -> None:
    sampler = born(workplace)
    for slot in (0, 1):
        workplace.fill_slot(slot, GREEDY, [1, 2, 3])
    publish(workplace, 1, [(next_row(workplace, 0), 65), (next_row(workplace, 1), 66)])
    sampler.turn(0)
    assert workplace.sampled.done(1, 0) == 1
    assert workplace.sampled.results(1, 2) == [(65, 0), (66, 0)]
    assert [workplace.output(slot) for slot in (0, 1)] == [[65], [66]]
    counters = workplace.snapshot("sampler-0").counters
    assert (counters["rows"], counters["tokens"], counters["stale_rows"]) == (2, 2, 0)
    assert counters["sampling_ns"] > 0
    assert workplace.snapshot("sampler-0").progress == 1


def test_wakes_the_detokenizers_of_its_rows(workplace: Workplace) -> None:
    sampler = born(workplace)
    bell = workplace.bells["detokenizer-0"]
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0, lane=1), 65)])
    sampler.turn(0)
    assert not bell.clear()
    publish(workplace, 2, [(next_row(workplace, 0), 65)])
    sampler.turn(0)
    assert bell.clear()


def test_the_lane_is_done_before_anybody_is_woken_or_anything_counted(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = born(workplace)
    seen: list[tuple[int, int]] = []

    def ring(_bell: Doorbell) -> None:
        seen.append((workplace.sampled.done(1, 0), rows_done(workplace)))

    monkeypatch.setattr(Doorbell, "ring", ring)
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0), 65)])
    sampler.turn(0)
    assert seen == [(1, 0)]


def test_leaves_the_rows_of_other_lanes_alone(workplace: Workplace) -> None:
    sampler = born(workplace)
    for slot in (0, 1):
        workplace.fill_slot(slot, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0), 65), (next_row(workplace, 1, lane=1), 66)])
    sampler.turn(0)
    assert [workplace.output(slot) for slot in (0, 1)] == [[65], []]
    assert [workplace.sampled.done(1, lane) for lane in (0, 1)] == [1, 0]


def test_a_turn_without_a_new_step_does_nothing(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0), 65)])
    sampler.turn(0)
    sampler.turn(0)
    assert workplace.output(0) == [65]
    assert rows_done(workplace) == 1


def test_a_row_of_an_earlier_occupant_touches_nothing(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    stale = next_row(workplace, 0)
    workplace.fill_slot(0, GREEDY, [9, 8, 7])
    before = [bytes(workplace.slots.buf), bytes(workplace.tokens.buf)]
    publish(workplace, 1, [(stale, 65)])
    sampler.turn(0)
    assert [bytes(workplace.slots.buf), bytes(workplace.tokens.buf)] == before
    assert workplace.sampled.results(1, 1) == [(-1, RowFlag.STALE | RowFlag.FINISHED)]
    assert workplace.snapshot("sampler-0").counters["stale_rows"] == 1


def test_a_replacement_does_the_unfinished_step_and_not_the_finished_one(
    workplace: Workplace,
) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0), 65)])
    sampler.turn(0)
    publish(workplace, 2, [(next_row(workplace, 0), 66)])
    replacement = born(workplace, incarnation=2)
    replacement.turn(0)
    assert workplace.output(0) == [65, 66]
    assert workplace.sampled.done(2, 0) == 2
    assert rows_done(workplace) == 1


def test_a_replacement_leaves_a_finished_step_alone(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0), 65)])
    sampler.turn(0)
    born(workplace, incarnation=2).turn(0)
    assert rows_done(workplace) == 0


def test_a_replacement_keeps_the_tokens_that_its_predecessor_had_written(
    workplace: Workplace,
) -> None:
    for slot in (0, 1):
        workplace.fill_slot(slot, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0), 65), (next_row(workplace, 1), 66)])
    workplace.generate(0, [90])  # and then it died, without a word on its lane
    born(workplace, incarnation=2).turn(0)
    assert workplace.sampled.results(1, 2) == [(90, 0), (66, 0)]
    assert [workplace.output(slot) for slot in (0, 1)] == [[90], [66]]


def test_a_step_whose_place_is_being_reused_is_passed_over(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0, lane=1), 65)])
    workplace.logits.begin(1 + RING_DEPTH)
    sampler.turn(0)
    assert workplace.sampled.done(1, 0) == 0
    publish(workplace, 2, [(next_row(workplace, 0), 66)])
    sampler.turn(0)
    assert workplace.output(0) == [66]


def test_a_sampler_that_slept_through_many_steps_goes_on_with_the_newest(
    workplace: Workplace,
) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    for step in range(1, 10):
        publish(workplace, step, [(next_row(workplace, 0, lane=1), 65)])
    publish(workplace, 10, [(next_row(workplace, 0), 66)])
    sampler.turn(0)
    assert workplace.output(0) == [66]
    assert [workplace.sampled.done(step, 0) for step in (9, 10)] == [0, 10]


def test_a_row_that_fits_no_slot_is_an_error_and_changes_nothing(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0)._replace(slot=NUM_SLOTS), 65)])
    with pytest.raises(InternalError, match="step 1"):
        sampler.turn(0)
    assert workplace.sampled.done(1, 0) == 0


def test_a_poisoned_ring_is_exchanged_for_the_new_one(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0), 65)])
    sampler.turn(0)
    old = workplace.sampled
    workplace.replace_ring(["sampler-0"])
    sampler.turn(0)
    publish(workplace, 1, [(next_row(workplace, 0), 66)])
    sampler.turn(0)
    assert workplace.output(0) == [65, 66]
    assert workplace.sampled.results(1, 1) == [(66, 0)]
    assert old.results(1, 1) == [(65, 0)]


def test_with_a_new_ring_nobody_is_named_any_more(workplace: Workplace) -> None:
    workplace.fill_slot(0, GREEDY, [1])
    publish(workplace, 1, [(next_row(workplace, 0), 65)])
    replacement = born(workplace, incarnation=2)
    line = workplace.names.index("sampler-0")
    assert workplace.board.served(line) is not None
    workplace.replace_ring(["sampler-0"])
    replacement.turn(0)
    assert workplace.board.served(line) is None


def test_of_two_new_rings_the_last_counts(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    workplace.replace_ring(["sampler-0"])
    workplace.replace_ring(["sampler-0"])
    sampler.turn(0)
    sampler.turn(0)
    publish(workplace, 1, [(next_row(workplace, 0), 66)])
    sampler.turn(0)
    assert workplace.output(0) == [66]


def test_waiting_for_a_new_ring_ends_with_the_drain_order(workplace: Workplace) -> None:
    context = workplace.context("sampler-0")
    sampler = Sampler(context)
    workplace.logits.poison()
    workplace.order("sampler-0", DrainWorker())
    sampler.turn(0)
    assert context.should_exit


def test_a_sampler_born_into_a_poisoned_ring_waits_for_the_next(workplace: Workplace) -> None:
    workplace.fill_slot(0, GREEDY, [1])
    workplace.logits.poison()
    sampler = Sampler(workplace.context("sampler-0"))
    workplace.replace_ring(["sampler-0"])
    sampler.turn(0)
    publish(workplace, 1, [(next_row(workplace, 0), 66)])
    sampler.turn(0)
    assert workplace.output(0) == [66]


def test_an_idle_sampler_reads_its_orders(workplace: Workplace) -> None:
    context = workplace.context("sampler-0")
    workplace.order("sampler-0", DrainWorker())
    Sampler(context).turn(0)
    assert context.should_exit


def test_an_end_from_outside_takes_the_row_out_without_a_token(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, GREEDY, [1])
    workplace.slots.store(0, SlotWord.END_REASON, 4)
    publish(workplace, 1, [(next_row(workplace, 0), 65)])
    sampler.turn(0)
    assert workplace.sampled.results(1, 1) == [(-1, RowFlag.FINISHED | RowFlag.NO_TOKEN)]
    assert workplace.output(0) == []
