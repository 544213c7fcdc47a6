"""One metric: what it is called, what it means, and how it is read from the board."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from hybridgen.ipc.histogram import HistogramCounts, HistogramSpec
from hybridgen.server.board_reading import Reading

Kind = Literal["counter", "gauge", "histogram", "summary"]


class Distribution(NamedTuple):
    """Value of a histogram."""

    spec: HistogramSpec
    counts: HistogramCounts

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper end, values up to it), the last one for all."""
        ends = [*(str(bound / self.spec.units) for bound in self.spec.bounds), "+Inf"]
        return list(zip(ends, map(float, accumulate(self.counts.buckets)), strict=True))

    @property
    def sum(self) -> float:
        """Of all values, in the unit that is shown."""
        return self.counts.sum / self.spec.units


class Mean(NamedTuple):
    """Value of a summary: a mean, once two of them are compared."""

    num: int
    sum: float


Value = int | float | Distribution | Mean
#: Values of the labels, in the order of their names, and the metric's own.
Labelled = tuple[Sequence[str], Value]


class MetricSpec(NamedTuple):
    """A row of the table of metrics."""

    name: str
    """As it is shown, apart from a counter's ``_total`` and a histogram's suffixes."""
    kind: Kind
    unit: str
    """For people: ``s``, ``tokens``, ``0 … 1``; empty where things are counted."""
    meaning: str
    read: Callable[[Reading], Sequence[Labelled]]
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """As queries have it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def family(self, reading: Reading) -> Metric:
        """Its samples."""
        return make_family(self.name, self.kind, self.meaning, self.labels, self.read(reading))


def make_family(
    name: str,
    kind: Kind,
    meaning: str,
    labels: Sequence[str],
    values: Sequence[Labelled],
) -> Metric:
    """A metric with its samples as prometheus_client has them."""
    if kind == "histogram":
        histogram = HistogramMetricFamily(name, meaning, labels=labels)
        for label_values, value in values:
            if isinstance(value, Distribution):
                histogram.add_metric(label_values, value.cumulative(), value.sum)
        return histogram
    if kind == "summary":
        summary = SummaryMetricFamily(name, meaning, labels=labels)
        for label_values, value in values:
            if isinstance(value, Mean):
                summary.add_metric(label_values, value.num, value.sum)
        return summary
    plain = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family = plain(name, meaning, labels=labels)
    for label_values, value in values:
        if isinstance(value, int | float):
            family.add_metric(label_values, value)
    return family
