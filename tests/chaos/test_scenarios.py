"""Short courses of the scenarios, three minutes of the mixed one; `make chaos` has the long ones.

``HYBRIDGEN_CHAOS_SEED`` (default 1) chooses the course; a report stands in the test's folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hybridgen.launch.chaos.live import LiveReport
from hybridgen.launch.chaos.options import Options
from hybridgen.launch.chaos.report import lines
from hybridgen.launch.chaos.run import run_scenario
from hybridgen.launch.chaos.scenario import scenario

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SEED = int(os.environ.get("HYBRIDGEN_CHAOS_SEED", "1"))


@pytest.mark.parametrize(
    ("name", "num_kills", "num_streams"),
    [
        ("kill-sampler", 4, 10),
        ("kill-detokenizer", 2, 10),
        ("kill-gateway", 2, 10),
        ("kill-supervisor", 1, 10),
        ("stop", 1, 10),
        ("die-abort", 8, 10),
        ("die-exit0", 5, 10),
        ("pause", 9, 10),
        ("torn-ring", 2, 10),
        ("torn-slot", 2, 10),
    ],
)
def test_texts_survive(name: str, num_kills: int, num_streams: int, tmp_path: Path) -> None:
    run_course(name, num_kills, num_streams, tmp_path, max_s=60.0)


@pytest.mark.timeout(360)
def test_texts_survive_a_kill_every_two_seconds_for_three_minutes(tmp_path: Path) -> None:
    run_course("mixed", 90, 20, tmp_path, max_s=240.0)


def run_course(name: str, num_kills: int, num_streams: int, folder: Path, *, max_s: float) -> None:
    options = Options(
        folder=folder, seed=SEED, num_streams=num_streams, num_kills=num_kills, max_s=max_s
    )
    with LiveReport(sys.stderr) as live:
        report = run_scenario(scenario(name), options, live.progress)
    print("\n".join(lines(report)))
    assert report.violations == []
    assert report.num_kills >= num_kills
    assert [aim for aim in report.missed if aim.figure.startswith("num_")] == []
    assert report.num_requests >= num_streams
