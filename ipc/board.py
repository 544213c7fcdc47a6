"""The board: one record per process, for whoever watches the tree.

::

    byte 4096 + i × 256
      line 0    pid · start_ticks · role · index · incarnation · state · progress · busy_until_ns
      line 1–2  16 counters, meaning by role (COUNTER_NAMES)
      line 3    reserved

Each process writes its own record and no other (the supervisor before it starts), so counting
costs a plain store and no message. ``begin`` stores the state last: a record with a state other
than EMPTY has a whole identity. Counters start at zero with each incarnation.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

from hybridgen.errors import InternalError
from hybridgen.ipc import _native, header
from hybridgen.ipc.header import RECORDS_OFFSET, Memory, SegmentKind

LINE_BYTES = 256
MAX_COUNTERS = 16
_PID, _START_TICKS, _ROLE, _INDEX, _INCARNATION, _STATE, _PROGRESS, _BUSY_UNTIL = range(0, 64, 8)
_COUNTERS = 64


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


COUNTER_NAMES: dict[Role, tuple[str, ...]] = {
    Role.SUPERVISOR: (),
    Role.COSCHEDULER: (
        "accepted",
        "finished",
        "cancelled",
        "rejected",
        "preempted",
        "corrupt_frames",
        "running",
        "waiting",
        "free_blocks",
    ),
    Role.GPU: ("steps", "rows", "prefill_tokens", "step_ns", "sample_wait_ns", "prefill_ns"),
    Role.SAMPLER: ("rows", "tokens", "sampling_ns", "stale_rows", "invalid_rows", "cut_rows"),
    Role.TOKENIZER: ("prompts", "tokens", "rejected"),
    Role.DETOKENIZER: ("tokens", "deltas", "frames", "blocked_sends", "corrupt_frames"),
    Role.GATEWAY: ("requests", "streams", "errors", "refused", "disconnects", "open"),
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
        for offset in (_PROGRESS, _BUSY_UNTIL, *range(_COUNTERS, _COUNTERS + MAX_COUNTERS * 8, 8)):
            _native.store(self._buf, self._base + offset, 0)
        self._offsets = {}
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
        self._add(self._base + _PROGRESS, n)

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
            busy_until_ns,
            counters,
        )

    def progress(self, i: int) -> int:
        """Turns of the loop of process ``i`` so far; one load."""
        return _native.load(self.buf, self._base(i) + _PROGRESS)

    def state(self, i: int) -> ProcessState:
        """How far process ``i`` is; one load, for loops that ask every step."""
        return ProcessState(_native.load(self.buf, self._base(i) + _STATE))

    def _base(self, i: int) -> int:
        if not 0 <= i < self.num_processes:
            raise InternalError("no such process", value=i, limit=self.num_processes)
        return RECORDS_OFFSET + i * LINE_BYTES


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot: field 22 of /proc/pid/stat."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])
