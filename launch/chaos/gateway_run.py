"""Kill the gateway under HTTP streams: clients see a reset and no more, no slot is lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial

from hybridgen.client.async_client import AsyncClient
from hybridgen.launch.chaos.answers import right_answers
from hybridgen.launch.chaos.campaign import OnProgress, own_tree
from hybridgen.launch.chaos.check import Violation
from hybridgen.launch.chaos.golden import make_questions
from hybridgen.launch.chaos.history import Blow, History
from hybridgen.launch.chaos.http_load import RESET, HttpLoad
from hybridgen.launch.chaos.options import QUESTIONS_PER_STREAM, Options
from hybridgen.launch.chaos.own_tree import OwnTree, free_port
from hybridgen.launch.chaos.report import ScenarioReport
from hybridgen.launch.chaos.rest import came_true, is_idle, process_of
from hybridgen.launch.chaos.scenario import Scenario
from hybridgen.launch.chaos.verdict import spread, verdict

#: The streams run so long between two kills.
CALM_S = 0.7


class GatewayRun:
    """Runs the scenario.

    Args:
        scenario: kill-gateway.
        options: seed, streams, limits, folder.
        on_progress: shows how it goes.
    """

    def __init__(self, scenario: Scenario, options: Options, on_progress: OnProgress) -> None:
        self._scenario = scenario
        self._options = options
        self._on_progress = on_progress
        self._freed_s: list[float] = []
        self._answers_s: list[float] = []
        self._found: list[Violation] = []

    async def run(self) -> ScenarioReport:
        """Do it, and say what came of it."""
        scenario, options = self._scenario, self._options
        port = free_port()
        questions = make_questions(options.num_streams * QUESTIONS_PER_STREAM, options.seed)
        async with own_tree(scenario, options, port) as tree, AsyncClient(tree.uri) as client:
            history = History((await right_answers(client, questions, options)).goldens)
            load = HttpLoad(port, questions, options.num_streams)
            history.records = load.records
            history.before = await tree.holdings(client)
            history.begun_s = time.monotonic()
            load.start()
            while len(history.blows) < (options.num_kills or scenario.num_kills):
                await asyncio.sleep(CALM_S)
                await self._kill(tree, client, load, history)
                self._on_progress(scenario.name, history, sum(len(r.pieces) for r in load.records))
                if options.max_s and time.monotonic() - history.begun_s > options.max_s:
                    break
            await load.finish()
            history.ended_s = time.monotonic()
            await self._until(partial(is_idle, client), "slots were not free in the end")
            history.after = await tree.holdings(client)
        report = verdict(scenario, history, found=self._found, allowed=frozenset({RESET}))
        report.figures |= spread("freed", self._freed_s) | spread("answers", self._answers_s)
        report.figures["num_refused"] = load.num_refused
        return report

    async def _kill(
        self, tree: OwnTree, client: AsyncClient, load: HttpLoad, history: History
    ) -> None:
        """One death: until its requests are gone, and until the next gateway answers."""
        gateway = await process_of(client, "gateway-0")
        if gateway is None or gateway.state != "ready":
            return
        load.may_ask.clear()
        blow = await asyncio.to_thread(tree.strike, gateway.name, gateway.pid, signal.SIGKILL)
        history.blows.append(blow)
        freed, answers = await asyncio.gather(
            self._until(partial(is_idle, client), "slots of a dead gateway's requests stay"),
            self._until(load.is_answered, "no gateway answers"),
        )
        self._freed_s.append(freed - blow.at_s)
        self._answers_s.append(answers - blow.at_s)
        load.may_ask.set()
        await self._until(partial(_is_back, tree, blow, gateway.incarnation), "it is not back")

    async def _until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> float:
        """When it came true; a violation when it did not in time."""
        if not await came_true(is_so):
            self._found.append(Violation("whole", what))
        return time.monotonic()


async def _is_back(tree: OwnTree, blow: Blow, incarnation: int) -> bool:
    tree.log.read()
    tree.follow(blow, incarnation)
    return blow.whole_s is not None
