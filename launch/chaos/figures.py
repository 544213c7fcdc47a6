"""Numbers out of a history: stalls, detection, recovery, tokens per second.

A *stall* belongs to one death and one open request: the longest time without text of that request
that overlaps the time from the death until the tree was whole again (at least ``MIN_WATCH_S``).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence

from hybridgen.launch.chaos.history import Blow, History, Record

#: A death is watched at least so long, also when the tree is whole at once.
MIN_WATCH_S = 0.5
#: A tree that is not whole again is watched so long.
MAX_WATCH_S = 20.0
WINDOW_S = 1.0


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that ``share`` of all values do not exceed; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def stalls_s(history: History) -> list[float]:
    """One stall for each pair of a death and a request that was giving text across it."""
    gaps = [_gaps(record) for record in history.records]
    found = []
    for number, blow in enumerate(history.blows):
        until_s = blow.at_s + _watch_s(blow)
        if number + 1 < len(history.blows):
            until_s = max(blow.at_s + MIN_WATCH_S, min(until_s, history.blows[number + 1].at_s))
        for of_record in gaps:
            longest_s = _longest(of_record, blow.at_s, until_s)
            if longest_s is not None:
                found.append(longest_s)
    return found


def _watch_s(blow: Blow) -> float:
    return MAX_WATCH_S if blow.whole_s is None else max(MIN_WATCH_S, blow.whole_s - blow.at_s)


def _gaps(record: Record) -> list[tuple[float, float]]:
    """Times without text, oldest first."""
    times = [piece.at_s for piece in record.pieces]
    return list(itertools.pairwise(times))


def _longest(gaps: list[tuple[float, float]], from_s: float, until_s: float) -> float | None:
    """The longest gap that overlaps a time; None when the request was not open at its start."""
    if not gaps or gaps[-1][1] < from_s or gaps[0][0] > from_s:
        return None
    first = bisect.bisect_left(gaps, from_s, key=lambda gap: gap[1])
    last = bisect.bisect_right(gaps, until_s, key=lambda gap: gap[0])
    return max((end - begin for begin, end in gaps[first:last]), default=None)


def detections_s(blows: Sequence[Blow]) -> list[float]:
    """From each death until the supervisor's word about it."""
    return [blow.detected_s - blow.at_s for blow in blows if blow.detected_s is not None]


def notes_s(blows: Sequence[Blow]) -> list[float]:
    """From each death until the coscheduler had acted on it."""
    return [blow.noted_s - blow.at_s for blow in blows if blow.noted_s is not None]


def recoveries_s(blows: Sequence[Blow]) -> list[float]:
    """From each death until its replacement was ready."""
    return [blow.whole_s - blow.at_s for blow in blows if blow.whole_s is not None]


def acceptances_s(history: History) -> list[float]:
    """From each death until a request that was sent after it gave its first text."""
    times = []
    for blow in history.blows:
        first = min(
            (r.pieces[0].at_s for r in history.records if r.begun_s >= blow.at_s and r.pieces),
            default=None,
        )
        if first is not None:
            times.append(first - blow.at_s)
    return times


def tokens_per_window(history: History) -> list[int]:
    """Tokens (pieces where no ids came) in each whole second of the run."""
    num_windows = int((history.ended_s - history.begun_s) / WINDOW_S)
    windows = [0] * max(0, num_windows)
    for record in history.records:
        for piece in record.pieces:
            window = int((piece.at_s - history.begun_s) / WINDOW_S)
            if 0 <= window < num_windows:
                windows[window] += len(piece.ids) or 1
    return windows


def windows_share(windows: Sequence[int]) -> float:
    """Share of the windows in which any token came."""
    return sum(count > 0 for count in windows) / len(windows) if windows else math.nan
