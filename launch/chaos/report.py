"""What came of a chaos run: one struct, written as JSON and shown as a table or a page."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridgen.launch.chaos.check import Violation
from hybridgen.launch.chaos.scenario import Aim

#: Of one scenario; what is wrong with one request is mostly wrong with many.
MAX_VIOLATIONS_SHOWN = 20


class BlowShown(msgspec.Struct, frozen=True):
    """A death on the page's time line."""

    at_s: float
    """Since the begin of the scenario."""
    name: str
    how: str


class ScenarioReport(msgspec.Struct, kw_only=True):
    """One scenario."""

    name: str
    text: str
    seconds: float
    num_kills: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    num_poisoned: int = 0
    """Requests that were served in two deaths without a token in between, and were told so."""
    figures: dict[str, float] = {}
    aims: list[Aim] = []
    violations: list[Violation] = []
    blows: list[BlowShown] = []
    stalls_s: list[float] = []
    tokens_per_window: list[int] = []
    load: float = 0.0
    """Mean load of the machine at the end of it."""

    @property
    def missed(self) -> list[Aim]:
        """Aims that were not reached."""
        return [a for a in self.aims if not a.is_reached(self.figures.get(a.figure, float("nan")))]


class ChaosReport(msgspec.Struct, kw_only=True):
    """A whole run."""

    seed: int
    model: str
    num_streams: int
    num_cpus: int
    version: str
    scenarios: list[ScenarioReport]

    @property
    def num_violations(self) -> int:
        """Of all scenarios."""
        return sum(len(one.violations) for one in self.scenarios)


def write_json(report: ChaosReport, path: Path) -> None:
    """Write everything, also what the page leaves out. NaN, which JSON cannot hold, is null."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)))


def lines(report: ScenarioReport) -> list[str]:
    """The scenario for a terminal."""
    verdict = "ok" if not report.violations else f"{len(report.violations)} VIOLATIONS"
    shown = [
        f"{report.name}: {report.num_kills} kills in {report.seconds:.0f} s, "
        f"{report.num_requests} requests, {report.num_tokens} tokens, "
        f"{report.num_poisoned} quarantined, load {report.load:.1f}: {verdict}"
    ]
    limits = {aim.figure: aim for aim in report.aims}
    for figure, value in report.figures.items():
        aim = limits.get(figure)
        shown.append(f"  {figure:<16} {value:10.4g}{'' if aim is None else _verdict(aim, value)}")
    shown += [f"  {v.invariant} {v.what}" for v in report.violations[:MAX_VIOLATIONS_SHOWN]]
    if len(report.violations) > MAX_VIOLATIONS_SHOWN:
        shown.append(f"  … and {len(report.violations) - MAX_VIOLATIONS_SHOWN} more")
    return shown


def _verdict(aim: Aim, value: float) -> str:
    return f"  aim {aim}: {aim.verdict(value)}"
