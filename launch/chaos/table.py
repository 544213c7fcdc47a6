"""The report as a table in Markdown: a line for each number that was to be reached."""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.launch.chaos.report import ChaosReport, ScenarioReport

_HEAD = ("scenario", "what", "kills", "took", "number", "reached", "limit", "verdict", "load")


def table(report: ChaosReport) -> str:
    """The whole table, with a line above that says what ran where."""
    facts = (
        f"HybridGen {report.version}, model {report.model}, {report.num_streams} streams, "
        f"{report.num_cpus} CPUs, seed {report.seed}, {report.num_violations} violations"
    )
    rows = [row for one in report.scenarios for row in _rows(one)]
    lines = [_line(_HEAD), _line(("---",) * len(_HEAD)), *map(_line, rows)]
    return "\n".join([facts, "", *lines, ""])


def _rows(one: ScenarioReport) -> Iterator[tuple[str, ...]]:
    """First the invariants, which every scenario has to keep, then its aims."""
    named = (one.name, one.text, str(one.num_kills), f"{one.seconds:.0f} s")
    kept = "missed" if one.violations else "reached"
    load = f"{one.load:.1f}"
    yield (*named, "violations", str(len(one.violations)), "0", kept, load)
    for aim in one.aims:
        value = one.figures.get(aim.figure, float("nan"))
        yield (*("",) * len(named), aim.figure, f"{value:.4g}", str(aim), aim.verdict(value), "")


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
