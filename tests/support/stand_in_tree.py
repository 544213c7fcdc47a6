"""A real supervisor over stand-in workers, as a process: ``python -m tests.support.stand_in_tree``.

Takes the options of `hybridgen serve`. ``STAND_IN_SIGNAL=<phase>:<name of a signal>`` sends itself
that signal as the phase begins.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from unittest import mock

from hybridgen.launch import cli, host, supervisor
from hybridgen.launch.banner import StartReport
from hybridgen.launch.plan import make_plan


def main() -> int:
    def plan_of_stand_ins(*arguments: object) -> object:
        plan = make_plan(*arguments)  # type: ignore[arg-type]  # passed through
        module = "tests.support.stand_in_worker"
        workers = [
            replace(w, entry=f"{module}:run", standby_entry=w.standby_entry and f"{module}:prepare")
            for w in plan.workers
        ]
        return plan._replace(workers=workers)

    wanted_phase, _, signal_name = os.environ.get("STAND_IN_SIGNAL", "").partition(":")
    tell_phase = StartReport.phase

    def tell_and_interrupt(report: StartReport, name: str, detail: str) -> None:
        tell_phase(report, name, detail)
        if name == wanted_phase:
            os.kill(os.getpid(), signal.Signals[signal_name])

    grace_s = float(os.environ.get("STAND_IN_GRACE_S", str(supervisor.EXIT_GRACE_S)))
    with (
        mock.patch.object(supervisor, "EXIT_GRACE_S", grace_s),
        mock.patch.object(host, "make_plan", plan_of_stand_ins),
        mock.patch.object(StartReport, "phase", tell_and_interrupt),
    ):
        return cli.run(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
