"""What shows whether a process moves, and whom it works for: words of its record on the board."""

from __future__ import annotations

from typing import NamedTuple

from hybridgen.ipc import _native
from hybridgen.ipc.header import Memory

PROGRESS, BUSY_UNTIL, BEATS, SERVING, STANDS_STILL = 48, 56, 328, 336, 384
_EPOCH_BITS = 48
#: In place of a slot: a prompt without one, and in place of the epoch its probe id.
PROBE_SLOT = (1 << 64 - _EPOCH_BITS) - 2


class Pulse(NamedTuple):
    """All that a watcher looks at."""

    progress: int
    """Turns of the process's own loop that did something."""
    beats: int
    """Turns of any kind."""
    busy_until_ns: int
    """CLOCK_MONOTONIC; until then it may stand still."""

    @classmethod
    def read(cls, buf: Memory, base: int) -> Pulse:
        """That of the record at ``base``."""
        return cls(*(_native.load(buf, base + word) for word in (PROGRESS, BEATS, BUSY_UNTIL)))


class Served(NamedTuple):
    """The occupant of a slot that a process is working for."""

    slot: int
    epoch: int
    """Its low 48 bits."""

    @classmethod
    def read(cls, buf: Memory, base: int) -> Served | None:
        """That of the record at ``base``; None for nobody in particular."""
        word = _native.load(buf, base + SERVING)
        slot = word >> _EPOCH_BITS
        return cls(slot - 1, word % (1 << _EPOCH_BITS)) if slot else None

    @classmethod
    def of(cls, slot: int, epoch: int) -> Served:
        """An occupant."""
        return cls(slot, epoch % (1 << _EPOCH_BITS))

    @property
    def word(self) -> int:
        """As it stands in the record."""
        return (self.slot + 1) << _EPOCH_BITS | self.epoch
