"""Requests made from our own description, valid and invalid: every answer is as described.

All checks of schemathesis: no 5xx, described statuses, types and bodies, valid data accepted and
invalid refused, methods and headers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.free_port import free_port
from tests.support.running_tree import running_tree

pytest.importorskip("schemathesis")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NUM_CASES = int(os.environ.get("NUM_FUZZ_CASES", "2000"))
#: So many of the cases belong to one of the operations with the largest bodies.
SHARE_OF_LARGEST = 0.16
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    number = free_port()
    with running_tree(model="mock", mock_max_model_len=32_768, num_gateways=1, port=number):
        yield number


def test_every_answer_is_as_described(port: int) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run"),
            f"http://127.0.0.1:{port}/openapi.json",
            *("--phases", "examples,coverage,fuzzing", "--checks", "all"),
            *("--max-examples", str(round(NUM_CASES * SHARE_OF_LARGEST))),
            # A text with NUL is refused by name, which no schema says.
            *("--generation-allow-x00", "false", "--generation-database", "none"),
            *("--seed", "1", "--no-color", "--request-timeout", "20"),
        ],
        cwd=ROOT,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.sdk.schemathesis_hooks"},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert "Unresolvable" not in done.stdout
    counted = re.search(r"(\d+) generated", done.stdout)
    assert counted is not None
    assert int(counted[1]) >= NUM_CASES
