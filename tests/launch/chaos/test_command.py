from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.launch.chaos.check import Violation
from hybridgen.launch.chaos.live import LiveReport
from hybridgen.launch.chaos.options import Options
from hybridgen.launch.chaos.report import ScenarioReport
from hybridgen.launch.chaos.scenario import SCENARIOS, Scenario
from hybridgen.launch.cli import run


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Scenario, Options]]:
    """What would have been run; `mixed` finds a violation."""
    asked: list[tuple[Scenario, Options]] = []

    def run_one(scenario: Scenario, options: Options, _: LiveReport) -> ScenarioReport:
        asked.append((scenario, options))
        found = [Violation("I3", "other text")] if scenario.name == "mixed" else []
        return ScenarioReport(name=scenario.name, text="", seconds=1.0, violations=found)

    monkeypatch.setattr("hybridgen.launch.chaos.run.run_scenario", run_one)
    return asked


def test_the_list_shows_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(one.name in shown for one in SCENARIOS)


def test_an_unknown_scenario_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "--scenario", "kill-samplr"]) == 2
    assert "kill-sampler" in capsys.readouterr().err


def test_a_run_without_violations_ends_well(
    ran: list[tuple[Scenario, Options]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "report"
    options = ["--seed", "7", "--kills", "3", "--streams", "5", "--report", str(folder)]
    assert run(["chaos", "--scenario", "pause", "--scenario", "kill-gpu", *options]) == 0
    assert [scenario.name for scenario, _ in ran] == ["pause", "kill-gpu"]
    assert ran[0][1] == Options(folder=folder, seed=7, num_streams=5, num_kills=3)
    assert {path.name for path in folder.iterdir()} == {"chaos.html", "chaos.json", "chaos.md"}
    assert "seed 7" in capsys.readouterr().out


def test_a_scenario_can_be_left_out_and_another_model_served(
    ran: list[tuple[Scenario, Options]], tmp_path: Path
) -> None:
    options = ["--model", "demo", "--report", str(tmp_path)]
    assert run(["chaos", "--without", "mixed", "--without", "pause", *options]) == 0
    names = {one.name for one in SCENARIOS} - {"mixed", "pause"}
    assert {scenario.name for scenario, _ in ran} == names
    assert {options.model for _, options in ran} == {"demo"}


def test_violations_end_with_code_1(
    ran: list[tuple[Scenario, Options]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chaos", "--report", str(tmp_path)]) == 1
    assert len(ran) == len(SCENARIOS)
    assert "1 violations" in capsys.readouterr().out
