"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape

from hybridgen.launch.chaos import plot
from hybridgen.launch.chaos.report import MAX_VIOLATIONS_SHOWN, ChaosReport, ScenarioReport
from hybridgen.launch.chaos.scenario import Aim

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 900px; color: #222 }
table { border-collapse: collapse } td, th { padding: .2em .8em; text-align: left }
th { border-bottom: 1px solid #999 } tr:nth-child(even) td { background: #f4f4f4 }
.bad { color: #b00020; font-weight: 600 } .good { color: #1b7f3b }
svg text { font: 11px system-ui, sans-serif; fill: #555 } h2 { margin-top: 2em }
@media (prefers-color-scheme: dark) {
  body { background: #1a1a1a; color: #ddd } tr:nth-child(even) td { background: #262626 }
  svg text { fill: #aaa } .bad { color: #ff6b6b } .good { color: #57c785 }
}
"""


def page(report: ChaosReport) -> str:
    """The whole document."""
    title = f"Chaos run, seed {report.seed}"
    facts = (
        f"HybridGen {report.version}, {report.num_streams} streams of the model {report.model}, "
        f"{report.num_cpus} CPUs, {report.num_violations} violations"
    )
    rows = "".join(_row(one) for one in report.scenarios)
    parts = "".join(_scenario(one) for one in report.scenarios)
    head = "<tr><th>scenario<th>kills<th>requests<th>quarantined<th>violations<th>aims missed</tr>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{escape(facts)}</p>"
        f"<table>{head}{rows}</table>{parts}</html>\n"
    )


def _row(one: ScenarioReport) -> str:
    missed = ", ".join(aim.figure for aim in one.missed) or "none"
    return (
        f'<tr><td><a href="#{one.name}">{one.name}</a><td>{one.num_kills}<td>{one.num_requests}'
        f"<td>{one.num_poisoned}<td>{_colored(str(len(one.violations)), not one.violations)}"
        f"<td>{_colored(missed, not one.missed)}</tr>"
    )


def _scenario(one: ScenarioReport) -> str:
    aims = {aim.figure: aim for aim in one.aims}
    figures = "".join(
        f"<tr><td>{name}<td>{value:.4g}<td>{_aim(aims.get(name), value)}</tr>"
        for name, value in one.figures.items()
    )
    violations = "".join(
        f"<li>{escape(v.invariant)}: {escape(v.what)}"
        for v in one.violations[:MAX_VIOLATIONS_SHOWN]
    )
    times = [(blow.at_s, blow.name) for blow in one.blows]
    return (
        f'<h2 id="{one.name}">{one.name}</h2><p>{escape(one.text)}: {one.num_kills} in '
        f"{one.seconds:.0f} s, at a load of {one.load:.1f}</p>"
        f'<ul class="bad">{violations}</ul>'
        f"<h3>Deaths</h3>{plot.events(times, one.seconds)}"
        f"<h3>Tokens per second</h3>"
        f"{plot.course(one.tokens_per_window, one.seconds, 'per s')}"
        f"<h3>Stalls</h3>{plot.distribution(one.stalls_s, 's')}"
        f"<h3>Figures</h3><table><tr><th>figure<th>value<th>aim</tr>{figures}</table>"
    )


def _aim(aim: Aim | None, value: float) -> str:
    if aim is None:
        return ""
    return _colored(str(aim), aim.is_reached(value))


def _colored(text: str, is_good: object) -> str:
    return f'<span class="{"good" if is_good else "bad"}">{escape(text)}</span>'
