from __future__ import annotations

import math

import pytest

from hybridgen.launch.chaos.figures import (
    acceptances_s,
    detections_s,
    notes_s,
    percentile,
    recoveries_s,
    stalls_s,
    tokens_per_window,
    windows_share,
)
from hybridgen.launch.chaos.history import Blow, History, Piece, Record


def stream(*times_s: float, begun_s: float = 0.0) -> Record:
    return Record(0, begun_s, 60.0, pieces=[Piece(at_s, "a", [1, 2]) for at_s in times_s])


def history(*records: Record, blows: tuple[Blow, ...] = ()) -> History:
    return History([], list(records), list(blows), begun_s=0.0, ended_s=4.5)


def test_percentiles_are_values_that_were_there() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([5.0], 0.99) == 5.0
    assert math.isnan(percentile([], 0.5))


def test_a_stall_is_the_longest_gap_across_a_death() -> None:
    one = stream(0.9, 1.0, 1.1, 1.9, 2.0, 3.9)
    blow = Blow(1.05, "sampler-0", "SIGKILL", whole_s=1.5)
    assert stalls_s(history(one, blows=(blow,))) == pytest.approx([0.8])


def test_a_gap_that_begins_a_little_later_belongs_to_the_death() -> None:
    """Text that was on its way when the process died comes first."""
    one = stream(0.9, 1.06, 1.07, 1.8, 1.81)
    blow = Blow(1.05, "detokenizer-0", "SIGKILL", whole_s=1.5)
    assert stalls_s(history(one, blows=(blow,))) == pytest.approx([0.73])


def test_requests_that_were_not_open_have_no_stall() -> None:
    early, late = stream(0.1, 0.2), stream(2.0, 3.9)
    blow = Blow(1.0, "sampler-0", "SIGKILL", whole_s=1.2)
    assert stalls_s(history(early, late, blows=(blow,))) == []


def test_a_stall_ends_with_the_next_death() -> None:
    one = stream(0.9, 1.0, 1.2, 2.0, 2.1, 3.9)
    blows = (Blow(1.0, "a", "", whole_s=1.1), Blow(2.05, "b", "", whole_s=2.1))
    assert stalls_s(history(one, blows=blows)) == pytest.approx([0.8, 1.8])


def test_detection_and_recovery_count_from_the_death() -> None:
    blows = [Blow(1.0, "a", "", detected_s=1.01, noted_s=1.02, whole_s=1.5), Blow(2.0, "b", "")]
    assert detections_s(blows) == pytest.approx([0.01])
    assert notes_s(blows) == pytest.approx([0.02])
    assert recoveries_s(blows) == pytest.approx([0.5])


def test_acceptance_is_the_first_text_of_a_request_sent_after_the_death() -> None:
    old, new = stream(0.5, 1.1, begun_s=0.4), stream(1.4, 1.5, begun_s=1.01)
    assert acceptances_s(history(old, new, blows=(Blow(1.0, "a", ""),))) == pytest.approx([0.4])


def test_windows_are_whole_seconds_of_the_run() -> None:
    windows = tokens_per_window(history(stream(0.1, 0.2, 2.5, 4.4)))
    assert windows == [4, 0, 2, 0]
    assert windows_share(windows) == 0.5
    assert math.isnan(windows_share([]))
