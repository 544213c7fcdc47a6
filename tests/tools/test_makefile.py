"""What targets of the Makefile run."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_chaos_leaves_no_scenario_out() -> None:
    command = ["make", "--dry-run", "chaos"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in shown.splitlines() if "tools.chaos" in line]
    assert line.split()[-2:] == ["--report", "chaos-report"]
