"""Fixed-bucket histograms on the board: counted by one process, read by whoever watches.

::

    word 0 … 30   values in each bucket (not cumulative); the last used one is the overflow
    word 31       sum of all values, in the unit of the bounds

Values and bounds are whole numbers (nanoseconds, tokens), so that a count is two plain stores and
no precision is lost however long a process lives. The writer keeps the counts in its own memory,
too: a word has no other writer, and reading it back would cost more than keeping it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from hybridgen.ipc import _native
from hybridgen.ipc.header import Memory

MAX_BUCKETS = 31
HISTOGRAM_BYTES = (MAX_BUCKETS + 1) * 8
_SUM = MAX_BUCKETS * 8
_NS_PER_S = 1_000_000_000


class HistogramSpec(NamedTuple):
    """What is counted and where buckets end."""

    name: str
    bounds: tuple[int, ...]
    """Upper ends, inclusive, ascending; at most MAX_BUCKETS - 1 of them."""
    units: int
    """Units of a value that make one of what is shown: 10⁹ for times in ns shown in s."""

    @classmethod
    def of_seconds(cls, name: str, *bounds_s: float) -> HistogramSpec:
        """Times: counted in ns, shown in seconds."""
        return cls(name, tuple(round(bound_s * _NS_PER_S) for bound_s in bounds_s), _NS_PER_S)

    @classmethod
    def of_tokens(cls, name: str, *bounds: int) -> HistogramSpec:
        """Numbers of tokens."""
        return cls(name, bounds, 1)


class HistogramCounts(NamedTuple):
    """A histogram as it stood at some moment."""

    buckets: tuple[int, ...]
    """Values in each bucket, one more than there are bounds."""
    sum: int
    """Of all values."""

    @property
    def num_values(self) -> int:
        """How many were counted."""
        return sum(self.buckets)

    def plus(self, other: HistogramCounts) -> HistogramCounts:
        """Both together."""
        pairs = zip(self.buckets, other.buckets, strict=True)
        return HistogramCounts(tuple(a + b for a, b in pairs), self.sum + other.sum)


class HistogramWriter:
    """One histogram of the calling process; all zero when the process begins.

    Args:
        buf: the board.
        base: byte offset of the histogram in it.
        spec: its bounds.
    """

    def __init__(self, buf: Memory, base: int, spec: HistogramSpec) -> None:
        self._buf = buf
        self._base = base
        self._bounds = spec.bounds
        self._buckets = [0] * (len(spec.bounds) + 1)
        self._sum = 0

    def observe(self, value: int, n: int = 1) -> None:
        """Count ``n`` times the same value."""
        i = bisect_left(self._bounds, value)
        self._buckets[i] += n
        self._sum += value * n
        _native.store(self._buf, self._base + i * 8, self._buckets[i])
        _native.store(self._buf, self._base + _SUM, self._sum)

    def observe_s(self, seconds: float, n: int = 1) -> None:
        """The same for a time in seconds; one below zero (a clock's fault) counts as zero."""
        self.observe(max(0, round(seconds * _NS_PER_S)), n)


def read_histogram(buf: Memory, base: int, spec: HistogramSpec) -> HistogramCounts:
    """The counts; each word whole, not all of one moment."""
    offsets = range(base, base + 8 * (len(spec.bounds) + 1), 8)
    buckets = tuple(_native.load(buf, offset) for offset in offsets)
    return HistogramCounts(buckets, _native.load(buf, base + _SUM))
