"""The board as the metrics page sees it: levels, totals, and what only two looks can tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from hybridgen.clock import Clock, monotonic_s
from hybridgen.ipc.board import (
    HISTOGRAMS,
    Board,
    BoardSnapshot,
    ProcessState,
    Role,
)
from hybridgen.ipc.histogram import HistogramCounts

#: Over what time shares and means are taken.
WINDOW_S = 10.0
_NS_PER_S = 1e9


class Process(NamedTuple):
    """One line of the board."""

    name: str
    """``role-index``."""
    seen: BoardSnapshot
    progress_age_s: float
    """Since its progress counter was last seen to move."""

    @property
    def is_up(self) -> bool:
        """It works, or finishes what it has in hand."""
        return self.seen.state in {ProcessState.READY, ProcessState.DRAINING}


class Reading(NamedTuple):
    """The whole board at one moment."""

    processes: list[Process]
    histograms: dict[str, HistogramCounts]
    """Name (ipc/board.py) → values of all processes of the role together."""
    gpu_utilization: float
    """Share of the window in which the gpu process computed, 0 to 1."""
    cpu_wait_us: float
    """Mean wait for the samplers in a step of the window."""

    def total(self, role: Role, counter: str) -> int:
        """Sum of a counter over all processes of a role."""
        seen = (process.seen for process in self.processes if process.seen.role is role)
        return sum(line.counters[counter] for line in seen)


class _Look(NamedTuple):
    at_s: float
    incarnation: int
    busy_ns: int
    num_steps: int
    wait_ns: int


class BoardReader:
    """Reads the board; ``look`` once a second keeps what a single reading cannot show.

    Args:
        board: of the tree.
        names: every process of it, in board order.
        clock: seconds that never jump.
    """

    def __init__(self, board: Board, names: Sequence[str], clock: Clock = monotonic_s) -> None:
        self._board = board
        self._names = names
        self._clock = clock
        self._gpu = names.index("gpu-0") if "gpu-0" in names else None
        self._progress = [(-1, clock())] * len(names)  # (counter, since when)
        self._looks: deque[_Look] = deque()

    def look(self) -> None:
        """Note what moved."""
        now_s = self._clock()
        for i in range(len(self._names)):
            progress = self._board.progress(i)
            if progress != self._progress[i][0]:
                self._progress[i] = progress, now_s
        if self._gpu is not None:
            self._note_gpu(self._board.snapshot(self._gpu), now_s)

    def read(self) -> Reading:
        """Everything as it is now."""
        self.look()
        now_s = self._clock()
        processes = [
            Process(name, self._board.snapshot(i), now_s - self._progress[i][1])
            for i, name in enumerate(self._names)
        ]
        utilization, wait_us = self._gpu_window()
        return Reading(processes, self._histograms(), utilization, wait_us)

    def _histograms(self) -> dict[str, HistogramCounts]:
        found: dict[str, list[HistogramCounts]] = {
            spec.name: [HistogramCounts((0,) * (len(spec.bounds) + 1), 0)]
            for specs in HISTOGRAMS.values()
            for spec in specs
        }
        for i in range(len(self._names)):
            for name, counts in self._board.histograms(i).items():
                found[name].append(counts)
        return {name: reduce(HistogramCounts.plus, parts) for name, parts in found.items()}

    def _note_gpu(self, seen: BoardSnapshot, now_s: float) -> None:
        if seen.role is not Role.GPU:
            return  # not claimed yet
        counters = seen.counters
        busy_ns = counters["step_ns"] + counters["prefill_ns"]
        looks = self._looks
        if looks and looks[-1].incarnation != seen.incarnation:
            looks.clear()  # its counters began again
        looks.append(
            _Look(now_s, seen.incarnation, busy_ns, counters["steps"], counters["sample_wait_ns"])
        )
        while len(looks) > 2 and looks[1].at_s <= now_s - WINDOW_S:
            looks.popleft()

    def _gpu_window(self) -> tuple[float, float]:
        if len(self._looks) < 2:
            return 0.0, 0.0
        first, last = self._looks[0], self._looks[-1]
        took_ns = (last.at_s - first.at_s) * _NS_PER_S
        num_steps = last.num_steps - first.num_steps
        utilization = min(1.0, (last.busy_ns - first.busy_ns) / took_ns) if took_ns > 0 else 0.0
        wait_us = (last.wait_ns - first.wait_ns) / num_steps / 1e3 if num_steps else 0.0
        return utilization, wait_us
