"""The board: one record per process, for whoever watches the tree.

::

    byte 4096 + i × 4096
      line 0     pid · start_ticks · role · index · incarnation · state · progress · busy_until_ns
      line 1–4   32 counters, meaning by role (COUNTER_NAMES)
      line 5     progress_ns · beats · serving
      line 6     stands_still, which the supervisor writes
      line 7     reserved
      line 8–63  14 histograms of 4 lines, meaning by role (HISTOGRAMS; layout: histogram.py)

Each process writes its own record and no other (the supervisor before it starts, and one word in
a line of its own), so counting costs a plain store and no message. ``begin`` stores the state last:
a record with a state other than EMPTY has a whole identity. Counters and histograms start at zero
with each incarnation.
A record whose role or state is none was damaged; readers see an empty one, and count it.
"""

from __future__ import annotations

import enum
import os
import time
from dataclasses import dataclass

from hybridgen.errors import InternalError
from hybridgen.ipc import _native, header
from hybridgen.ipc.header import RECORDS_OFFSET, Memory, SegmentKind
from hybridgen.ipc.histogram import (
    HISTOGRAM_BYTES,
    HistogramCounts,
    HistogramSpec,
    HistogramWriter,
    read_histogram,
)
from hybridgen.ipc.pulse import BEATS, SERVING, STANDS_STILL, Pulse, Served

LINE_BYTES = 4096
MAX_COUNTERS = 32
MAX_HISTOGRAMS = 14
_PID, _START_TICKS, _ROLE, _INDEX, _INCARNATION, _STATE, _PROGRESS, _BUSY_UNTIL = range(0, 64, 8)
_COUNTERS = 64
_PROGRESS_NS = _COUNTERS + MAX_COUNTERS * 8
_HISTOGRAMS = 512


class Role(enum.IntEnum):
    """What a process is for."""

    SUPERVISOR = 0
    COSCHEDULER = 1
    GPU = 2
    SAMPLER = 3
    TOKENIZER = 4
    DETOKENIZER = 5
    GATEWAY = 6

    @property
    def label(self) -> str:
        """The word in process titles, logs and messages."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Role:
        """The role with this label.

        Raises:
            InternalError: no such role.
        """
        for role in cls:
            if role.label == label:
                return role
        raise InternalError("no such role", value=label)


class ProcessState(enum.IntEnum):
    """How far a process is in its life."""

    EMPTY = 0
    STARTING = 1
    READY = 2
    DRAINING = 3
    EXITED = 4


_ROLES = frozenset(Role)
_STATES = frozenset(ProcessState)

COUNTER_NAMES: dict[Role, tuple[str, ...]] = {
    Role.SUPERVISOR: ("loaded_permille", "corrupt_frames"),
    Role.COSCHEDULER: (
        "accepted",
        "finished",
        "cancelled",
        "rejected",
        "preempted",
        "overflowed",
        "corrupt_frames",
        "running",
        "waiting",
        "free_blocks",
        "blocks",
        "encoding",
        "prompt_tokens",
        "replayed_tokens",
        "looked_up_tokens",
        "prefix_hits",
        "prefix_hit_tokens",
        "kept_blocks",
        "ended_stop",
        "ended_length",
        "ended_error",
        "poisoned",
        "repeated_frames",
        "missed_frames",
    ),
    Role.GPU: (
        "steps",
        "rows",
        "prefill_tokens",
        "step_ns",
        "sample_wait_ns",
        "prefill_ns",
        "open_steps",
        "memory_full",
    ),
    Role.SAMPLER: ("rows", "tokens", "sampling_ns", "stale_rows", "invalid_rows", "cut_rows"),
    Role.TOKENIZER: ("prompts", "tokens", "rejected", "encode_ns"),
    Role.DETOKENIZER: (
        "tokens",
        "deltas",
        "frames",
        "blocked_sends",
        "corrupt_frames",
        "sent_tokens",
        "open_texts",
        "detokenize_ns",
        "send_ns",
    ),
    Role.GATEWAY: ("requests", "streams", "errors", "refused", "disconnects", "open"),
}

# fmt: off
_REQUEST_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200,
              500)
_TTFT_S = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5,
           0.75, 1, 2, 3, 5, 7.5, 10)
_BETWEEN_TOKENS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02,
                     0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
# fmt: on

#: One value a request, apart from ``inter_token`` with one a token.
HISTOGRAMS: dict[Role, tuple[HistogramSpec, ...]] = {
    **dict.fromkeys(Role, ()),
    Role.COSCHEDULER: (
        HistogramSpec.of_seconds("e2e", *_REQUEST_S),
        HistogramSpec.of_seconds("queue", *_REQUEST_S),
        HistogramSpec.of_seconds("tokenize", *_REQUEST_S),
        HistogramSpec.of_seconds("prefill", *_REQUEST_S),
        HistogramSpec.of_seconds("decode", *_REQUEST_S),
        HistogramSpec.of_tokens("prompt_tokens", *_TOKENS),
        HistogramSpec.of_tokens("generated_tokens", *_TOKENS),
    ),
    Role.DETOKENIZER: (
        HistogramSpec.of_seconds("ttft", *_TTFT_S),
        HistogramSpec.of_seconds("inter_token", *_BETWEEN_TOKENS_S),
    ),
}


@dataclass(frozen=True, slots=True)
class BoardSnapshot:
    """One record as it stood at some moment."""

    pid: int
    start_ticks: int
    role: Role
    index: int
    incarnation: int
    state: ProcessState
    progress: int
    progress_ns: int
    """CLOCK_MONOTONIC of the last progress, or of the process's start."""
    busy_until_ns: int
    counters: dict[str, int]


class BoardLine:
    """The record of one process, for that process to write."""

    def __init__(self, buf: Memory, base: int) -> None:
        self._buf = buf
        self._base = base
        self._offsets: dict[str, int] = {}

    def begin(self, pid: int, start_ticks: int, role: Role, index: int, incarnation: int) -> None:
        """Start a new incarnation: identity, zeroed counters, then state STARTING."""
        _native.store(self._buf, self._base + _STATE, ProcessState.EMPTY)
        identity = (pid, start_ticks, role, index, incarnation)
        for position, value in enumerate(identity):
            _native.store(self._buf, self._base + position * 8, value)
        fresh = (_PROGRESS, _BUSY_UNTIL, BEATS, SERVING)
        for offset in (*fresh, *range(_COUNTERS, _COUNTERS + MAX_COUNTERS * 8, 8)):
            _native.store(self._buf, self._base + offset, 0)
        _native.store(self._buf, self._base + _PROGRESS_NS, time.monotonic_ns())
        self._offsets = {}
        with memoryview(self._buf) as view:
            start = self._base + _HISTOGRAMS
            view[start : start + MAX_HISTOGRAMS * HISTOGRAM_BYTES] = bytes(
                MAX_HISTOGRAMS * HISTOGRAM_BYTES
            )
        _native.store(self._buf, self._base + _STATE, ProcessState.STARTING)

    def claim(self, role: Role, index: int, incarnation: int) -> None:
        """``begin`` for the calling process."""
        pid = os.getpid()
        self.begin(pid, start_ticks(pid), role, index, incarnation)

    def set_state(self, state: ProcessState) -> None:
        """Say how far the process is."""
        _native.store(self._buf, self._base + _STATE, state)

    def tick(self, n: int = 1) -> None:
        """Count turns of the process's own loop that did something."""
        if n:
            self._add(self._base + _PROGRESS, n)
            _native.store(self._buf, self._base + _PROGRESS_NS, time.monotonic_ns())

    def beat(self) -> None:
        """The loop went round, or waits for another process in good order."""
        self._add(self._base + BEATS, 1)

    def serve(self, slot: int, epoch: int) -> None:
        """What is done from now on is done for this occupant: if it kills, this one is why."""
        _native.store(self._buf, self._base + SERVING, Served.of(slot, epoch).word)

    def serve_nobody(self) -> None:
        """… or it is done for no request, or for many at once."""
        _native.store(self._buf, self._base + SERVING, 0)

    def set_busy_until_ns(self, until_ns: int) -> None:
        """Ask not to be judged hung before this time (CLOCK_MONOTONIC)."""
        _native.store(self._buf, self._base + _BUSY_UNTIL, until_ns)

    def add(self, counter: str, n: int = 1) -> None:
        """Add to a counter of this role.

        Raises:
            InternalError: a counter that COUNTER_NAMES does not list for the role.
        """
        self._add(self._offset(counter), n)

    def set(self, counter: str, n: int) -> None:
        """Set a counter of this role (a level, such as ``running``)."""
        _native.store(self._buf, self._offset(counter), n)

    def histograms(self) -> dict[str, HistogramWriter]:
        """Those of this role, by name, all empty: to be asked for once, by the line's writer."""
        role = Role(_native.load(self._buf, self._base + _ROLE))
        return {
            spec.name: HistogramWriter(self._buf, _histogram_base(self._base, position), spec)
            for position, spec in enumerate(HISTOGRAMS[role])
        }

    def _add(self, offset: int, n: int) -> None:
        _native.store(self._buf, offset, _native.load(self._buf, offset) + n)

    def _offset(self, counter: str) -> int:
        if not self._offsets:
            role = Role(_native.load(self._buf, self._base + _ROLE))
            self._offsets = {
                name: self._base + _COUNTERS + position * 8
                for position, name in enumerate(COUNTER_NAMES[role])
            }
        try:
            return self._offsets[counter]
        except KeyError:
            known = ", ".join(self._offsets)
            raise InternalError("no such counter", value=counter, limit=known) from None


class Board:
    """Typed view of a board segment."""

    def __init__(self, buf: Memory) -> None:
        geometry = header.read_geometry(buf, SegmentKind.BOARD, 1)
        (self.num_processes,) = geometry
        need_bytes = self.size_bytes(self.num_processes)
        header.check_geometry(buf, SegmentKind.BOARD, geometry, need_bytes)
        self.buf = buf
        #: Records that this reader found damaged, each look counted.
        self.num_rejected = 0

    @staticmethod
    def size_bytes(num_processes: int) -> int:
        """Bytes of the whole segment."""
        return RECORDS_OFFSET + num_processes * LINE_BYTES

    @staticmethod
    def make_geometry(num_processes: int) -> tuple[int, ...]:
        """Geometry words of the header."""
        return (num_processes,)

    @classmethod
    def in_memory(cls, num_processes: int) -> Board:
        """A board over private memory."""
        geometry = cls.make_geometry(num_processes)
        return cls(header.in_memory(SegmentKind.BOARD, cls.size_bytes(num_processes), geometry))

    def line(self, i: int) -> BoardLine:
        """The record of process ``i``, for its writer."""
        return BoardLine(self.buf, self._base(i))

    def snapshot(self, i: int) -> BoardSnapshot:
        """The record of process ``i`` as it stands now; each word whole, not all of one moment."""
        base = self._base(i)
        words = [_native.load(self.buf, base + offset) for offset in range(0, _COUNTERS, 8)]
        if words[2] not in _ROLES or words[5] not in _STATES:
            self.num_rejected += 1
            words = [0] * len(words)
        role = Role(words[2])
        counters = {
            name: _native.load(self.buf, base + _COUNTERS + position * 8)
            for position, name in enumerate(COUNTER_NAMES[role])
        }
        pid, start_ticks, _, index, incarnation, state, progress, busy_until_ns = words
        return BoardSnapshot(
            pid,
            start_ticks,
            role,
            index,
            incarnation,
            ProcessState(state),
            progress,
            _native.load(self.buf, base + _PROGRESS_NS),
            busy_until_ns,
            counters,
        )

    def histograms(self, i: int) -> dict[str, HistogramCounts]:
        """The histograms of process ``i``, by name."""
        base = self._base(i)
        word = _native.load(self.buf, base + _ROLE)
        if word not in _ROLES:
            self.num_rejected += 1
            return {}
        role = Role(word)
        return {
            spec.name: read_histogram(self.buf, _histogram_base(base, position), spec)
            for position, spec in enumerate(HISTOGRAMS[role])
        }

    def progress(self, i: int) -> int:
        """Turns of the loop of process ``i`` so far; one load."""
        return _native.load(self.buf, self._base(i) + _PROGRESS)

    def pulse(self, i: int) -> Pulse:
        """What shows whether process ``i`` moves."""
        return Pulse.read(self.buf, self._base(i))

    def served(self, i: int) -> Served | None:
        """Whom process ``i`` works for, or worked for when it ended."""
        return Served.read(self.buf, self._base(i))

    def stands_still(self, i: int) -> bool:
        """Whether the supervisor found that process ``i`` does not move."""
        return _native.load(self.buf, self._base(i) + STANDS_STILL) != 0

    def judge(self, i: int, *, stands_still: bool) -> None:
        """The supervisor's finding; it alone may call this."""
        _native.store(self.buf, self._base(i) + STANDS_STILL, int(stands_still))

    def state(self, i: int) -> ProcessState:
        """How far process ``i`` is; one load, for loops that ask every step."""
        word = _native.load(self.buf, self._base(i) + _STATE)
        if word in _STATES:
            return ProcessState(word)
        self.num_rejected += 1
        return ProcessState.EMPTY

    def _base(self, i: int) -> int:
        if not 0 <= i < self.num_processes:
            raise InternalError("no such process", value=i, limit=self.num_processes)
        return RECORDS_OFFSET + i * LINE_BYTES


def _histogram_base(base: int, position: int) -> int:
    return base + _HISTOGRAMS + position * HISTOGRAM_BYTES


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot: field 22 of /proc/pid/stat."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])
