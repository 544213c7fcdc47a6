"""Stands between two ends of a link and does to frames what no link of ours should do.

Pure and seeded: frames are put in at one end and taken out at the other, by the same thread or by
the thread of ``SocketProxy``; time is counted in takes.
"""

from __future__ import annotations

import collections
import enum
import random
from typing import Any, NamedTuple

#: Takes for which a frame is held back, at most.
MAX_HELD = 30


class Mishap(enum.Enum):
    """What may happen to a frame."""

    DROP = enum.auto()
    DOUBLE = enum.auto()  # the second one comes late
    DELAY = enum.auto()  # and all behind it
    OVERTAKE = enum.auto()  # held back while others pass


class Mishaps(NamedTuple):
    """A course of mishaps: how often each kind happens, and to which messages."""

    shares: dict[Mishap, float]
    kinds: frozenset[str] = frozenset()
    """Class names of messages; empty: all."""

    @classmethod
    def of(cls, *mishaps: Mishap, share: float = 0.2, kinds: tuple[str, ...] = ()) -> Mishaps:
        """Each of these equally often, together in a share of all frames."""
        return cls(dict.fromkeys(mishaps, share / len(mishaps)), frozenset(kinds))


NO_MISHAPS = Mishaps({})


class FaultProxy:
    """One direction of one link.

    Attributes:
        num_mishaps: that happened so far.
    """

    def __init__(self, chance: random.Random, mishaps: Mishaps = NO_MISHAPS) -> None:
        self.num_mishaps: collections.Counter[Mishap] = collections.Counter()
        self._chance = chance
        self._mishaps = mishaps
        self._queue: collections.deque[Any] = collections.deque()
        self._held: list[tuple[int, Any]] = []  # until which take, what
        self._num_takes = 0
        self._shut_until = 0

    def put(self, frame: Any, kind: str) -> None:
        """A frame with a message of class ``kind`` goes in."""
        mishap = self._draw(kind)
        if mishap is not None:
            self.num_mishaps[mishap] += 1
        if mishap is Mishap.DELAY:
            self._shut_until = self._later()
        if mishap in (Mishap.DOUBLE, Mishap.OVERTAKE):
            self._held.append((self._later(), frame))
        if mishap not in (Mishap.DROP, Mishap.OVERTAKE):
            self._queue.append(frame)

    def take(self) -> Any | None:
        """The next frame that comes out; None when none does now."""
        self._num_takes += 1
        if self._num_takes < self._shut_until:
            return None
        for held in self._held:
            if held[0] <= self._num_takes:
                self._held.remove(held)
                return held[1]
        return self._queue.popleft() if self._queue else None

    def cut(self) -> None:
        """The connection breaks: what is under way is lost."""
        self._queue.clear()
        self._held.clear()

    @property
    def is_empty(self) -> bool:
        """Nothing is under way."""
        return not self._queue and not self._held

    def _later(self) -> int:
        return self._num_takes + self._chance.randint(1, MAX_HELD)

    def _draw(self, kind: str) -> Mishap | None:
        mishaps = self._mishaps
        if mishaps.kinds and kind not in mishaps.kinds:
            return None
        point = self._chance.random()
        for mishap, share in mishaps.shares.items():
            point -= share
            if point < 0:
                return mishap
        return None
