from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from hybridgen.launch.chaos import plot
from hybridgen.launch.chaos.check import Violation
from hybridgen.launch.chaos.history import Blow, Outcome
from hybridgen.launch.chaos.page import page
from hybridgen.launch.chaos.report import ChaosReport, ScenarioReport, lines, write_json
from hybridgen.launch.chaos.scenario import scenario
from hybridgen.launch.chaos.table import table
from hybridgen.launch.chaos.verdict import verdict
from tests.launch.chaos.histories import whole_history


def reported(**changes: object) -> ScenarioReport:
    history = whole_history()
    history.blows = [Blow(10.02, "sampler-0", "SIGKILL", detected_s=10.03, whole_s=10.5)]
    return msgspec.structs.replace(verdict(scenario("kill-sampler"), history), **changes)


def whole_report(*scenarios: ScenarioReport) -> ChaosReport:
    return ChaosReport(
        seed=7,
        model="mock",
        num_streams=4,
        num_cpus=2,
        version="0.0",
        scenarios=list(scenarios),
    )


def test_the_table_has_a_line_for_each_number_to_reach() -> None:
    figures = {"detected_p99_s": 0.01, "stall_p50_s": 0.2}
    report = whole_report(reported(figures=figures), reported(violations=[Violation("I3", "x")]))
    rows = [[cell.strip() for cell in line.split("|")] for line in table(report).splitlines()[4:]]
    numbers = [row[5:9] for row in rows]
    assert numbers[:4] == [
        ["violations", "0", "0", "reached"],
        ["detected_p99_s", "0.01", "≤ 0.02", "reached"],
        ["stall_p50_s", "0.2", "≤ 0.05", "missed"],
        ["stall_p99_s", "nan", "≤ 1.5", "missed"],
    ]
    assert rows[0][1:4] == ["kill-sampler", "SIGKILL a sampler in mid-stream", "1"]
    assert numbers[4] == ["violations", "1", "0", "missed"]


def test_a_verdict_holds_what_the_history_shows() -> None:
    report = reported()
    assert (report.num_kills, report.num_requests, report.violations) == (1, 4, [])
    assert report.figures["detected_p99_s"] == pytest.approx(0.01)
    assert report.figures["whole_max_s"] == pytest.approx(0.48)
    assert report.figures["stall_p99_s"] == pytest.approx(0.01)
    assert report.missed == []


def test_violations_of_the_history_are_in_the_verdict_and_those_seen_before() -> None:
    history = whole_history()
    history.records[0].outcomes.clear()
    history.counted = None
    seen = [Violation("exit", "it said nothing")]
    report = verdict(scenario("mixed"), history, found=seen)
    assert [violation.invariant for violation in report.violations] == ["exit", "I1"]


def test_quarantined_requests_are_counted_and_no_violation() -> None:
    history = whole_history()
    history.counted = None
    history.records[0].outcomes = [Outcome(11.0, error="poison_request")]
    report = verdict(scenario("mixed"), history)
    assert (report.num_poisoned, report.violations) == (1, [])
    assert report.figures["num_poisoned"] == 1


def test_where_deaths_are_far_apart_nobody_may_be_quarantined() -> None:
    history = whole_history()
    history.counted = None
    history.records[0].outcomes = [Outcome(11.0, error="poison_request")]
    assert [found.invariant for found in verdict(scenario("kill-sampler"), history).violations] == [
        "I3"
    ]


def test_an_aim_without_its_figure_is_missed() -> None:
    missed = reported(figures={"stall_p50_s": math.nan, "stall_p99_s": 9.0}).missed
    assert [aim.figure for aim in missed] == ["detected_p99_s", "stall_p50_s", "stall_p99_s"]


def test_the_terminal_shows_aims_and_violations() -> None:
    shown = "\n".join(lines(reported(violations=[Violation("I3", "other text")] * 30)))
    assert "30 VIOLATIONS" in shown
    assert "aim ≤ 0.02: reached" in shown
    assert "I3 other text" in shown
    assert "10 more" in shown


def test_the_json_is_read_back(tmp_path: Path) -> None:
    report = whole_report(reported(), reported(figures={"x": math.nan}))
    write_json(report, tmp_path / "chaos.json")
    again = msgspec.json.decode((tmp_path / "chaos.json").read_bytes())
    assert again["scenarios"][0]["figures"]["stall_p99_s"] == pytest.approx(0.01)
    assert again["scenarios"][1]["figures"]["x"] is None


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    text = page(whole_report(reported(violations=[Violation("I3", "<script>")])))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "http" not in text.replace("http-equiv", "")
    assert text.count("<svg") == 3


@pytest.mark.parametrize("values", [[], [0.0], [0.001, 0.5, 20.0], [1.0] * 50])
def test_plots_are_well_formed(values: list[float]) -> None:
    for drawn in (
        plot.distribution(values, "s"),
        plot.course(values, 10.0, "per s"),
        plot.events([(value, "a<b") for value in values], 30.0),
    ):
        ElementTree.fromstring(drawn)  # noqa: S314  # we drew it ourselves


def test_a_window_without_a_token_is_marked() -> None:
    assert plot.course([3, 0, 3], 3.0, "per s").count("<circle") == 1
