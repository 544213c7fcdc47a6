"""`hybridgen serve` with workers that misbehave: ``python -m tests.support.faulty_tree``.

Takes the options of `hybridgen serve`; ``faulty_tree`` starts it for a test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from hybridgen.launch import cli, host, tree
from hybridgen.launch.plan import make_plan
from tests.support.running_tree import RunningTree, running_tree

ROOT = Path(__file__).parents[2]
_MODULE = "tests.support.faulty_workers"
_SPOILED = ("tokenizer", "detokenizer", "sampler", "gpu")


@contextmanager
def faulty_tree(
    monkeypatch: pytest.MonkeyPatch, faulty: str, **options: object
) -> Iterator[RunningTree]:
    """A running tree whose workers misbehave as ``faulty`` says."""
    command = (sys.executable, "-P", "-m", "tests.support.faulty_tree")
    monkeypatch.setattr(tree, "SERVE_COMMAND", command)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("FAULTY", faulty)
    with running_tree(**options) as running:
        yield running


def main() -> int:
    def plan_of_faulty(*arguments: object) -> object:
        plan = make_plan(*arguments)  # type: ignore[arg-type]  # passed through
        workers = [
            replace(
                w,
                entry=f"{_MODULE}:{w.role.label}",
                standby_entry=w.standby_entry and f"{_MODULE}:prepare_{w.role.label}",
            )
            if w.role.label in _SPOILED
            else w
            for w in plan.workers
        ]
        return plan._replace(workers=workers)

    with mock.patch.object(host, "make_plan", plan_of_faulty):
        return cli.run(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
