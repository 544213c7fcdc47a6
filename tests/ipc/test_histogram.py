"""Histograms on the board: what is counted is what a reader sees."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.ipc.board import HISTOGRAMS, MAX_HISTOGRAMS, Board, Role
from hybridgen.ipc.histogram import MAX_BUCKETS, HistogramCounts, HistogramSpec


def test_a_value_falls_into_the_bucket_whose_end_it_does_not_pass() -> None:
    board = Board.in_memory(1)
    board.line(0).begin(1, 1, Role.COSCHEDULER, 0, 1)
    histogram = board.line(0).histograms()["prompt_tokens"]
    for value in (0, 1, 2, 3, 1_000_000):
        histogram.observe(value)
    histogram.observe(5, n=3)
    counts = board.histograms(0)["prompt_tokens"]
    assert counts.buckets[:4] == (2, 1, 4, 0)  # ends at 1, 2, 5, 10
    assert counts.buckets[-1] == 1
    assert (counts.num_values, counts.sum) == (8, 1_000_021)


def test_times_are_kept_to_the_nanosecond_and_never_negative() -> None:
    board = Board.in_memory(1)
    board.line(0).begin(1, 1, Role.DETOKENIZER, 0, 1)
    histogram = board.line(0).histograms()["ttft"]
    histogram.observe_s(0.001)
    histogram.observe_s(-1e-9)
    counts = board.histograms(0)["ttft"]
    assert counts.buckets[0] == 2
    assert counts.sum == 1_000_000


def test_a_new_incarnation_starts_from_zero() -> None:
    board = Board.in_memory(1)
    line = board.line(0)
    line.begin(1, 1, Role.DETOKENIZER, 0, 1)
    line.histograms()["ttft"].observe_s(1.0)
    line.begin(2, 2, Role.DETOKENIZER, 0, 2)
    assert board.histograms(0)["ttft"].num_values == 0


@given(st.lists(st.integers(0, 60_000)))
def test_counts_are_those_of_a_plain_list(values: list[int]) -> None:
    board = Board.in_memory(1)
    board.line(0).begin(1, 1, Role.COSCHEDULER, 0, 1)
    histogram = board.line(0).histograms()["generated_tokens"]
    for value in values:
        histogram.observe(value)
    spec = next(s for s in HISTOGRAMS[Role.COSCHEDULER] if s.name == "generated_tokens")
    expected = [0] * (len(spec.bounds) + 1)
    for value in values:
        expected[bisect.bisect_left(spec.bounds, value)] += 1
    assert board.histograms(0)["generated_tokens"] == HistogramCounts(tuple(expected), sum(values))


@pytest.mark.parametrize("role", Role)
def test_every_role_has_histograms_that_fit_its_record(role: Role) -> None:
    assert len(HISTOGRAMS[role]) <= MAX_HISTOGRAMS
    for spec in HISTOGRAMS[role]:
        assert len(spec.bounds) < MAX_BUCKETS
        assert list(spec.bounds) == sorted(set(spec.bounds))


def test_two_histograms_of_a_line_do_not_touch() -> None:
    board = Board.in_memory(2)
    for i in range(2):
        board.line(i).begin(1, 1, Role.COSCHEDULER, 0, 1)
    writers = board.line(0).histograms()
    for n, writer in enumerate(writers.values(), start=1):
        writer.observe(10**18, n)
    seen = board.histograms(0)
    assert [counts.num_values for counts in seen.values()] == list(range(1, len(writers) + 1))
    assert all(counts.num_values == 0 for counts in board.histograms(1).values())


def test_counts_of_two_processes_add_up() -> None:
    assert HistogramCounts((1, 2), 5).plus(HistogramCounts((3, 4), 7)) == HistogramCounts(
        (4, 6), 12
    )


def test_seconds_are_shown_as_they_were_given() -> None:
    spec = HistogramSpec.of_seconds("x", 0.0001, 2)
    assert [bound / spec.units for bound in spec.bounds] == [0.0001, 2.0]
