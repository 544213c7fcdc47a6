"""Kill the supervisor, or ask it to stop: all goes with it, nothing is left, the port is free."""

from __future__ import annotations

import asyncio
import signal
import time

import psutil

from hybridgen.client.async_client import AsyncClient
from hybridgen.client.limits import ClientLimits
from hybridgen.errors import ChannelTimeout, Draining, PeerGone
from hybridgen.ipc.segment import SHM_DIR
from hybridgen.launch.chaos.answers import right_answers
from hybridgen.launch.chaos.campaign import OnProgress, own_tree
from hybridgen.launch.chaos.check import Violation
from hybridgen.launch.chaos.golden import make_questions
from hybridgen.launch.chaos.history import History, Question
from hybridgen.launch.chaos.load import Load
from hybridgen.launch.chaos.options import QUESTIONS_PER_STREAM, Options
from hybridgen.launch.chaos.own_tree import OwnTree, free_port, shm_names
from hybridgen.launch.chaos.report import ScenarioReport
from hybridgen.launch.chaos.scenario import SUPERVISOR, Scenario
from hybridgen.launch.chaos.verdict import spread, verdict

#: Clients give up on a silent tree after this.
ANSWER_TIMEOUT_S = 2.0
#: Streams run so long before the blow.
CALM_S = 0.5
GONE_LIMIT_S = 10.0
#: What a client may be told when its tree goes or is gone.
GONE_CODES = frozenset({PeerGone.code, ChannelTimeout.code, Draining.code})


class SupervisorRun:
    """Runs the scenario.

    Args:
        scenario: whose signals each tree's supervisor gets.
        options: seed, streams, limits, folder.
        on_progress: shows how it goes.
    """

    def __init__(self, scenario: Scenario, options: Options, on_progress: OnProgress) -> None:
        self._scenario = scenario
        self._options = options
        self._on_progress = on_progress
        self._gone_s: list[float] = []
        self._found: list[Violation] = []

    async def run(self) -> ScenarioReport:
        """Do it, and say what came of it."""
        scenario, options = self._scenario, self._options
        port = free_port()
        questions = make_questions(options.num_streams * QUESTIONS_PER_STREAM, options.seed)
        history = History([])
        history.begun_s = time.monotonic()
        while len(history.blows) < (options.num_kills or scenario.num_kills):
            async with own_tree(scenario, options, port) as tree:
                await self._kill(tree, questions, history)
            num_pieces = sum(len(record.pieces) for record in history.records)
            self._on_progress(scenario.name, history, num_pieces)
            if options.max_s and time.monotonic() - history.begun_s > options.max_s:
                break
        history.ended_s = time.monotonic()
        report = verdict(scenario, history, found=self._found, allowed=GONE_CODES)
        report.figures |= spread("gone", self._gone_s)
        return report

    async def _kill(self, tree: OwnTree, questions: list[Question], history: History) -> None:
        supervisor = psutil.Process(tree.handle.pid)
        everyone = [supervisor, *supervisor.children(recursive=True)]
        limits = ClientLimits(answer_timeout_s=ANSWER_TIMEOUT_S)
        async with AsyncClient(tree.uri, limits=limits) as client:
            if not history.goldens:
                history.goldens = (await right_answers(client, questions, self._options)).goldens
            load = Load(client, questions, self._options.num_streams)
            load.start()
            await asyncio.sleep(CALM_S)
            for number, signum in enumerate(self._scenario.signals):
                await asyncio.sleep(self._scenario.pause_s if number else 0.0)
                blow = tree.strike(SUPERVISOR, tree.handle.pid, signum)
            history.blows.append(blow)
            self._gone_s.append(await self._await_gone(everyone) - blow.at_s)
            code = await asyncio.to_thread(tree.stop)
            if signum is signal.SIGTERM and code != 0:
                self._found.append(Violation("exit", f"exit code {code} after SIGTERM"))
            left = shm_names(tree.handle.pid)
            self._found += [Violation("I6", f"{SHM_DIR}/{name} was left") for name in left]
            await load.finish()
        history.records += load.records

    async def _await_gone(self, everyone: list[psutil.Process]) -> float:
        until_s = time.monotonic() + GONE_LIMIT_S
        while any(_is_alive(process) for process in everyone):
            if time.monotonic() > until_s:
                self._found.append(Violation("I6", "processes outlive their supervisor"))
                break
            await asyncio.sleep(0.005)
        return time.monotonic()


def _is_alive(process: psutil.Process) -> bool:
    """It runs; one that only waits to be reaped by init holds nothing any more."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
