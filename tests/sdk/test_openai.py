"""OpenAI's own packages against a real tree: today's for Python, one built on httpx, Node's.

The package of the test environment is always there; ``make sdks`` puts the others into ``.sdks``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk import openai_cases
from tests.sdk.conftest import KEY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HERE = Path(__file__).parent
SDKS = HERE.parents[1] / ".sdks"
OLD_PYTHON = SDKS / "openai-1"
NODE = SDKS / "node"


def problems(command: list[str], port: int, python_path: str = "") -> dict[str, str | None]:
    """Case → what failed."""
    done = subprocess.run(
        [*command[:2], f"http://127.0.0.1:{port}/v1", KEY, *command[2:]],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": python_path},
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["case"]: line["problem"] for line in lines}


def assert_all_well(found: dict[str, str | None], names: list[str]) -> None:
    assert list(found) == names
    failed = {name: problem for name, problem in found.items() if problem}
    assert not failed, "\n".join(f"{name}:\n{problem}" for name, problem in failed.items())


PYTHON_NAMES = [case.__name__ for case in openai_cases.CASES]
PYTHON_COMMAND = [sys.executable, str(HERE / "openai_cases.py")]


def test_todays_python_package_is_served(port: int) -> None:
    assert_all_well(problems(PYTHON_COMMAND, port), PYTHON_NAMES)


@pytest.mark.skipif(not OLD_PYTHON.exists(), reason="not installed; `make sdks` does")
def test_an_older_python_package_over_httpx_is_served(port: int) -> None:
    assert_all_well(problems(PYTHON_COMMAND, port, str(OLD_PYTHON)), PYTHON_NAMES)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not NODE.exists(), reason="not installed; `make sdks` does")
def test_the_node_package_is_served(port: int) -> None:
    script = HERE / "openai_cases.mjs"
    names = re.findall(r"^async function (\w*_\w*)\(", script.read_text(), re.MULTILINE)
    assert_all_well(problems(["node", str(script), str(NODE)], port), names)
