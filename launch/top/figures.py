"""What a tree did between two looks at it: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hybridgen.ipc.board import HISTOGRAMS, Role
from hybridgen.messages import ProcessInfo, ProcessList

#: Name on the screen → (role, histogram on its line of the board).
LATENCIES = {
    "first token": (Role.DETOKENIZER, "ttft"),
    "between tokens": (Role.DETOKENIZER, "inter_token"),
    "whole request": (Role.COSCHEDULER, "e2e"),
    "queue": (Role.COSCHEDULER, "queue"),
}
_NS_PER_S = 1e9


class Latency(msgspec.Struct, frozen=True):
    """How long something took, from a histogram: as exact as its buckets are narrow."""

    p50_s: float
    p99_s: float


class Figures(msgspec.Struct, frozen=True):
    """The tree as a whole."""

    span_s: float
    """Between the two looks; rates and latencies are of this time."""
    num_running: int
    num_waiting: int
    num_open: int
    """Requests over HTTP that are in hand."""
    tokens_per_s: float
    requests_per_s: float
    step_ms: float | None
    """Mean time of a decode step; None when there was none."""
    latencies: dict[str, Latency]
    """Those of ``LATENCIES`` of which something was counted."""


class ProcessRate(NamedTuple):
    """One process between the looks."""

    cpu: float
    """CPUs kept busy: 1.0 is one core."""
    progress_per_s: float
    counters_per_s: dict[str, float]


def figures(before: ProcessList | None, after: ProcessList) -> Figures:
    """What happened from ``before`` to ``after``; nothing without a ``before``."""
    span_s = span_between(before, after)
    delta = _Delta(before if span_s > 0 else after, after)
    num_steps = delta.of(Role.GPU, "steps")
    rate = 1.0 / span_s if span_s > 0 else 0.0
    return Figures(
        span_s=span_s,
        num_running=_level(after, Role.COSCHEDULER, "running"),
        num_waiting=_level(after, Role.COSCHEDULER, "waiting"),
        num_open=_level(after, Role.GATEWAY, "open"),
        tokens_per_s=delta.of(Role.SAMPLER, "tokens") * rate,
        requests_per_s=delta.of(Role.COSCHEDULER, "finished") * rate,
        step_ms=delta.of(Role.GPU, "step_ns") / num_steps / 1e6 if num_steps else None,
        latencies={
            shown: latency
            for shown, (role, name) in LATENCIES.items()
            if (latency := delta.latency(role, name)) is not None
        },
    )


def process_rates(before: ProcessList | None, after: ProcessList) -> dict[str, ProcessRate]:
    """The same for each process, by name; all zero for one that was not there before."""
    span_s = span_between(before, after)
    old = _by_name(before) if before is not None and span_s > 0 else {}
    return {
        process.name: _rate(_same(old.get(process.name), process) or process, process, span_s)
        for process in after.processes
    }


def span_between(before: ProcessList | None, after: ProcessList) -> float:
    """Seconds between two looks at one tree; 0 when they are not of the same one."""
    if before is None or before.instance != after.instance:
        return 0.0
    return max(0.0, after.uptime_s - before.uptime_s)


def quantile(bounds: Sequence[int], counts: Sequence[int], share: float) -> float:
    """The value that ``share`` of all counted ones do not exceed, evenly spread in its bucket.

    Args:
        bounds: upper ends of all buckets but the last, which counts as no wider than it begins.
        counts: values in each bucket; not all zero.
        share: 0 … 1.
    """
    wanted = share * sum(counts)
    seen = 0
    for i, bound in enumerate(bounds):
        if counts[i] and seen + counts[i] >= wanted:
            low = bounds[i - 1] if i else 0
            return low + (bound - low) * max(0.0, wanted - seen) / counts[i]
        seen += counts[i]
    return float(bounds[-1])


class _Delta:
    """Growth of counters and histograms; those of a new incarnation began at zero."""

    def __init__(self, before: ProcessList | None, after: ProcessList) -> None:
        old = _by_name(before) if before is not None else {}
        self._pairs = [(_same(old.get(new.name), new), new) for new in after.processes]

    def of(self, role: Role, counter: str) -> int:
        """Growth of a counter, all processes of the role together."""
        return sum(
            new.counters.get(counter, 0) - (0 if old is None else old.counters.get(counter, 0))
            for old, new in self._pairs
            if new.role == role.label
        )

    def latency(self, role: Role, name: str) -> Latency | None:
        """Of the values that were counted meanwhile; None when there were none."""
        spec = next(spec for spec in HISTOGRAMS[role] if spec.name == name)
        none = [0] * (len(spec.bounds) + 1)
        counts = none
        for old, new in self._pairs:
            if new.role == role.label:
                now = new.histograms.get(name, none)
                then = none if old is None else old.histograms.get(name, none)
                counts = [a + b - c for a, b, c in zip(counts, now, then, strict=True)]
        if not any(counts):
            return None
        p50, p99 = (quantile(spec.bounds, counts, share) / _NS_PER_S for share in (0.5, 0.99))
        return Latency(p50, p99)


def _level(tree: ProcessList, role: Role, counter: str) -> int:
    return sum(p.counters.get(counter, 0) for p in tree.processes if p.role == role.label)


def _rate(old: ProcessInfo, new: ProcessInfo, span_s: float) -> ProcessRate:
    def per_s(now: float, then: float) -> float:
        return max(0.0, now - then) / span_s if span_s > 0 else 0.0

    return ProcessRate(
        cpu=per_s(new.cpu_time_s, old.cpu_time_s),
        progress_per_s=per_s(new.progress, old.progress),
        counters_per_s={
            name: per_s(value, old.counters.get(name, 0)) for name, value in new.counters.items()
        },
    )


def _same(old: ProcessInfo | None, new: ProcessInfo) -> ProcessInfo | None:
    """``old`` if it is the same process."""
    if old is None or (old.pid, old.incarnation) != (new.pid, new.incarnation):
        return None
    return old


def _by_name(tree: ProcessList) -> Mapping[str, ProcessInfo]:
    return {process.name: process for process in tree.processes}
