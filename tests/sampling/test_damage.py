"""Native readers never crash, hang, or answer with an id that is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hybridgen.launch.child import describe_exit
from tests.support.stand_in_processes import child_environment


def read_damaged(seed: int, num_rounds: int, limit_s: float) -> dict[str, float]:
    """What became of readers over damaged memory, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sampling.damaged_lanes", str(seed), str(num_rounds)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {describe_exit(done.returncode)}\n{done.stderr}"
    counts: dict[str, float] = json.loads(done.stdout)
    return counts


def test_damaged_words_are_rejected() -> None:
    counts = read_damaged(seed=1, num_rounds=20, limit_s=30)
    assert counts["outside"] == 0
    assert counts["rejected"] > 100
    assert counts["calls"] > counts["rejected"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_many_damaged_words_are_rejected(seed: int) -> None:
    counts = read_damaged(seed=seed, num_rounds=600, limit_s=120)
    assert counts["outside"] == 0
    assert counts["rejected"] > 10_000
