"""One scenario against one tree: load, blows, rest, verdict.

::

    start the tree ─ learn the answers ─ warm up ─ note what is held ─ load on ─ blows ─
    load off ─ until everything is at rest ─ note again ─ check the history ─ stop

The load runs on the event loop of this process; the blows are beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from hybridgen.client.async_client import AsyncClient
from hybridgen.fault import FAULT_ENV, SEED_ENV
from hybridgen.launch.chaos.answers import right_answers
from hybridgen.launch.chaos.blows import Blows
from hybridgen.launch.chaos.check import Violation
from hybridgen.launch.chaos.golden import make_questions
from hybridgen.launch.chaos.history import History
from hybridgen.launch.chaos.load import Load
from hybridgen.launch.chaos.options import QUESTIONS_PER_STREAM, Options, tree_config
from hybridgen.launch.chaos.own_tree import OwnTree, free_port
from hybridgen.launch.chaos.report import ScenarioReport
from hybridgen.launch.chaos.rest import LIMIT_S, came_true, counted, is_at_rest
from hybridgen.launch.chaos.scenario import GATEWAY, Plan, Scenario
from hybridgen.launch.chaos.verdict import verdict

SHOWN_EVERY_S = 0.5

#: Told now and then: the scenario's name, its history so far, the tokens that came.
OnProgress = Callable[[str, History, int], None]


async def run_campaign(
    scenario: Scenario, options: Options, on_progress: OnProgress
) -> ScenarioReport:
    """Do it, and say what came of it."""
    questions = make_questions(options.num_streams * QUESTIONS_PER_STREAM, options.seed)
    port = free_port() if GATEWAY in scenario.victims else None
    async with own_tree(scenario, options, port) as tree, AsyncClient(tree.uri) as client:
        answers = await right_answers(client, questions, options)
        history = History(answers.goldens)
        load = Load(client, questions, options.num_streams)
        load.records += answers.records
        history.records = load.records
        blows = Blows(
            *(scenario, options),
            tree=tree,
            client=client,
            history=history,
            load=load,
            port=port,
        )
        await load.ask_each_once()
        await came_true(partial(is_at_rest, client))
        history.before = await tree.holdings(client)
        history.begun_s = time.monotonic()
        load.start()
        showing = asyncio.create_task(_show(scenario.name, history, load, on_progress))
        try:
            await blows.run()
        finally:
            await load.finish()
            showing.cancel()
        history.ended_s = time.monotonic()
        if await came_true(partial(is_at_rest, client)):
            history.counted = await counted(client)
        else:
            blows.found.append(Violation("I6", f"not at rest after {LIMIT_S:.0f} s"))
        history.after = await tree.holdings(client)
    report = verdict(scenario, history, found=blows.found)
    if scenario.plan is Plan.PAUSE:
        report.figures["num_restarts"] = blows.num_restarts
    return report


async def _show(name: str, history: History, load: Load, on_progress: OnProgress) -> None:
    while True:
        on_progress(name, history, load.num_tokens)
        await asyncio.sleep(SHOWN_EVERY_S)


@asynccontextmanager
async def own_tree(
    scenario: Scenario, options: Options, port: int | None = None
) -> AsyncIterator[OwnTree]:
    """A tree for a scenario, with its faults; ended on the way out."""
    environment = {FAULT_ENV: scenario.fault, SEED_ENV: str(options.seed)}
    log_path = options.folder / f"{scenario.name}.log"
    config = tree_config(options, port=port, settings=scenario.settings)
    tree = await asyncio.to_thread(OwnTree, config, log_path, environment)
    try:
        yield tree
    finally:
        await asyncio.to_thread(tree.stop)
