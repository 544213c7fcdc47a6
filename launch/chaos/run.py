"""A chaos run: its scenarios one after another, the report of all of them at the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import msgspec

from hybridgen.launch.chaos.campaign import OnProgress, run_campaign
from hybridgen.launch.chaos.gateway_run import GatewayRun
from hybridgen.launch.chaos.live import LiveReport
from hybridgen.launch.chaos.options import MOCK, Options
from hybridgen.launch.chaos.page import page
from hybridgen.launch.chaos.report import ChaosReport, ScenarioReport, lines, write_json
from hybridgen.launch.chaos.scenario import Plan, Scenario
from hybridgen.launch.chaos.supervisor_run import SupervisorRun
from hybridgen.launch.chaos.table import table
from hybridgen.version import __version__

JSON_NAME, PAGE_NAME, TABLE_NAME = "chaos.json", "chaos.html", "chaos.md"


def run_scenario(scenario: Scenario, options: Options, on_progress: OnProgress) -> ScenarioReport:
    """One scenario on a tree of its own. Call from the main thread.

    Raises:
        HybridGenError: the tree cannot start.
    """
    if options.model != MOCK:
        counts = tuple(aim for aim in scenario.aims if aim.figure.startswith("num_"))
        scenario = msgspec.structs.replace(scenario, aims=counts)  # times are the mock engine's
    match scenario.plan:
        case Plan.GATEWAY:
            work = GatewayRun(scenario, options, on_progress).run()
        case Plan.SUPERVISOR:
            work = SupervisorRun(scenario, options, on_progress).run()
        case _:
            work = run_campaign(scenario, options, on_progress)
    return asyncio.run(work)


def run_all(scenarios: Sequence[Scenario], options: Options, live: LiveReport) -> ChaosReport:
    """All scenarios; the report in ``options.folder`` is whole after each of them.

    Raises:
        HybridGenError: a tree cannot start.
    """
    report = ChaosReport(
        seed=options.seed,
        model=options.model,
        num_streams=options.num_streams,
        num_cpus=len(os.sched_getaffinity(0)),
        version=__version__,
        scenarios=[],
    )
    for scenario in scenarios:
        one = run_scenario(scenario, options, live.progress)
        report.scenarios.append(one)
        live.say(lines(one))
        write_json(report, options.folder / JSON_NAME)
        (options.folder / TABLE_NAME).write_text(table(report), encoding="utf-8")
        (options.folder / PAGE_NAME).write_text(page(report), encoding="utf-8")
    return report
