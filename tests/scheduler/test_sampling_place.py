"""Where tokens are chosen follows the measured times."""

from __future__ import annotations

import pytest

from hybridgen.scheduler.sampling_place import (
    MAX_TRIAL,
    NUM_SETTLED,
    NUM_TRIAL,
    SamplingPlace,
)


def run(place: SamplingPlace, num_steps: int, times_ns: dict[bool, int], rows: int = 8) -> int:
    """Steps that take as long as their place says; how many of them were on the device."""
    num_on_device = 0
    for _ in range(num_steps):
        is_on_device = place.wants_device(rows)
        place.note(rows, is_on_device, times_ns[is_on_device])
        num_on_device += is_on_device
    return num_on_device


@pytest.mark.parametrize(("mode", "expected"), [("true", True), ("false", False)])
def test_an_order_is_followed_whatever_the_times_say(mode, expected):
    place = SamplingPlace(mode)
    run(place, 2000, {expected: 10_000, not expected: 10})
    assert place.wants_device(8) is expected


def test_the_samplers_have_the_work_until_the_device_was_tried():
    place = SamplingPlace("auto")
    assert run(place, NUM_SETTLED, {False: 100, True: 50}) == 0
    assert run(place, NUM_TRIAL, {False: 100, True: 50}) == NUM_TRIAL


def test_the_device_keeps_what_it_does_faster_and_gives_back_what_it_does_slower():
    place = SamplingPlace("auto")
    run(place, NUM_SETTLED + NUM_TRIAL, {False: 1000, True: 900})
    assert run(place, NUM_SETTLED, {False: 1000, True: 900}) == NUM_SETTLED
    # Other work has come: the trial of the samplers shows them ahead by now.
    run(place, 40 * (NUM_SETTLED + NUM_TRIAL), {False: 1000, True: 2000})
    share = run(place, 1000, {False: 1000, True: 2000}) / 1000
    assert share < 0.1


@pytest.mark.parametrize("is_settled_on_device", [False, True])
def test_a_trial_whose_steps_cannot_be_measured_ends_where_it_came_from(is_settled_on_device):
    place = SamplingPlace("auto")
    if is_settled_on_device:
        run(place, NUM_SETTLED + NUM_TRIAL, {False: 1000, True: 900})
    run(place, NUM_SETTLED, {False: 1000, True: 900})
    on_trial = [place.wants_device(8) for _ in range(MAX_TRIAL)]
    assert on_trial == [not is_settled_on_device] * MAX_TRIAL
    assert place.wants_device(8) is is_settled_on_device


def test_a_tie_leaves_the_work_with_the_samplers():
    place = SamplingPlace("auto")
    run(place, 3 * (NUM_SETTLED + NUM_TRIAL), {False: 1000, True: 998})
    assert not place.wants_device(8)


def test_batches_of_other_sizes_are_measured_apart():
    place = SamplingPlace("auto")
    run(place, NUM_SETTLED + NUM_TRIAL, {False: 1000, True: 500}, rows=64)
    assert place.wants_device(64)
    assert place.wants_device(100)
    assert not place.wants_device(8)


def test_steps_enqueued_before_a_change_are_not_counted():
    place = SamplingPlace("auto")
    run(place, NUM_SETTLED, {False: 1000, True: 500})
    for _ in range(100):
        place.note(8, False, 10)  # late answers of the other place
    assert run(place, NUM_TRIAL, {False: 1000, True: 500}) == NUM_TRIAL
    assert place.wants_device(8)
