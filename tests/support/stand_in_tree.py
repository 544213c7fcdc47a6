"""A real supervisor over stand-in workers, as a process: ``python -m tests.support.stand_in_tree``.

Takes the options of `hybridgen serve`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from unittest import mock

from hybridgen.launch import cli, host
from hybridgen.launch.plan import make_plan


def main() -> int:
    def plan_of_stand_ins(*arguments: object) -> object:
        plan = make_plan(*arguments)  # type: ignore[arg-type]  # passed through
        workers = [replace(w, entry="tests.support.stand_in_worker:run") for w in plan.workers]
        return plan._replace(workers=workers)

    with mock.patch.object(host, "make_plan", plan_of_stand_ins):
        return cli.run(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
