"""What is done to a tree under load, by the plan of a scenario."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time

from hybridgen.client.async_client import AsyncClient
from hybridgen.errors import PeerGone
from hybridgen.launch.chaos.check import Violation
from hybridgen.launch.chaos.history import Blow, History, Record
from hybridgen.launch.chaos.http_load import status_of
from hybridgen.launch.chaos.load import Load
from hybridgen.launch.chaos.options import Options
from hybridgen.launch.chaos.own_tree import OwnTree
from hybridgen.launch.chaos.rest import LIMIT_S, came_true, process_of, processes_of
from hybridgen.launch.chaos.scenario import SUPERVISOR, Plan, Scenario
from hybridgen.launch.chaos.tree_log import Death

#: Between a tree that is whole again and the next blow.
CALM_S = (0.05, 0.35)
FAULT_LOOK_S = 0.1


class Blows:
    """Deals them out, and sees to it that each is noticed and made good.

    Args:
        scenario: to whom, how, how often.
        options: seed and limits.
        tree: the one that was started for it.
        client: to ask who is there.
        history: gets the blows.
        load: asked for a probe at each blow.
        port: of the tree's gateway, if it has one.

    Attributes:
        found: what went wrong with a death itself.
        num_restarts: of processes that were only stopped for a while.
    """

    def __init__(
        self,
        scenario: Scenario,
        options: Options,
        *,
        tree: OwnTree,
        client: AsyncClient,
        history: History,
        load: Load,
        port: int | None = None,
    ) -> None:
        self.found: list[Violation] = []
        self.num_restarts = 0
        self._scenario = scenario
        self._num_kills = options.num_kills or scenario.num_kills
        self._max_s = options.max_s
        self._chance = random.Random(f"{options.seed} {scenario.name}")
        self._tree = tree
        self._client = client
        self._history = history
        self._load = load
        self._port = port

    async def run(self) -> None:
        """All of them."""
        match self._scenario.plan:
            case Plan.FAULT:
                await self._watch_faults()
            case Plan.PAUSE:
                await self._pauses()
            case _:
                await self._strikes()

    def _is_over(self) -> bool:
        seconds = time.monotonic() - self._history.begun_s
        is_late = self._max_s is not None and seconds > self._max_s
        return is_late or len(self._history.blows) >= self._num_kills

    def _next_victim(self) -> str:
        victims = self._scenario.victims
        if self._scenario.plan is Plan.BEAT:
            return self._chance.choice(victims)
        return victims[len(self._history.blows) % len(victims)]

    # --- signals --------------------------------------------------------------------------------

    async def _strikes(self) -> None:
        """A blow, and the next when the tree is whole again, or when its time has come."""
        is_beat = self._scenario.plan is Plan.BEAT
        struck: list[tuple[Blow, int]] = []
        due_s = time.monotonic()
        while not self._is_over():
            if is_beat:
                due_s += self._scenario.pause_s
            else:
                due_s = time.monotonic() + self._chance.uniform(*CALM_S)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            blow = await self._strike(struck)
            if blow is not None and not is_beat:
                await self._await_whole(*struck[-1])
                await self._await_flow(blow)
        if struck:
            await self._await_whole(*struck[-1])
        self._check_deaths(struck)

    async def _strike(self, struck: list[tuple[Blow, int]]) -> Blow | None:
        """One signal; None when the victim is not there to take it."""
        signals = self._scenario.signals
        name, signum = self._next_victim(), signals[len(struck) % len(signals)]
        victim = await process_of(self._client, name)
        if victim is None or victim.state != "ready":
            return None
        try:
            blow = await asyncio.to_thread(self._tree.strike, name, victim.pid, signum)
        except PeerGone:  # it died of something else: the log tells
            return None
        self._history.blows.append(blow)
        struck.append((blow, victim.incarnation))
        self._load.probe(len(struck))
        return blow

    async def _await_whole(self, blow: Blow, incarnation: int) -> None:
        async def is_whole() -> bool:
            self._tree.log.read()
            self._tree.follow(blow, incarnation)
            return blow.whole_s is not None

        if not await came_true(is_whole):
            self._miss("whole", f"{blow.name} was not replaced within {LIMIT_S:.0f} s")

    async def _await_flow(self, blow: Blow) -> None:
        """Until every stream has moved on: a second death before that would be another matter."""
        whole_s = blow.whole_s or blow.at_s

        async def flows() -> bool:
            return all(r.outcomes or _has_text(r, whole_s) for r in self._history.records)

        if not await came_true(flows):
            self._miss("whole", f"not every stream goes on after a death of {blow.name}")

    def _check_deaths(self, struck: list[tuple[Blow, int]]) -> None:
        """Each blow was reported with its reason, and nobody else died."""
        self._tree.log.read()
        said = {(death.name, death.incarnation): death.how for death in self._tree.log.deaths}
        for blow, incarnation in struck:
            self._tree.follow(blow, incarnation)
            how = said.pop((blow.name, incarnation), "nothing")
            if (self._scenario.how or f"killed by {blow.how}") not in how:
                self._miss("exit", f"{blow.how} to {blow.name}: the supervisor said {how}")
        for (name, _), how in said.items():
            self._miss("exit", f"{name} {how}, and nobody struck it")

    # --- faults of their own, pauses ------------------------------------------------------------

    async def _watch_faults(self) -> None:
        """The processes die of themselves; look on until it is enough."""
        tree, blows = self._tree, self._history.blows
        tree.log.read()
        num_before = len(tree.log.deaths)
        deaths: list[Death] = []
        while not self._is_over():
            await asyncio.sleep(FAULT_LOOK_S)
            await self._knock()
            tree.log.read()
            deaths = tree.log.deaths[num_before:]
            blows += map(tree.blow_of, deaths[len(blows) :])
        if blows:
            await self._await_whole(blows[-1], deaths[-1].incarnation)
        for blow, death in zip(blows, deaths, strict=True):
            tree.follow(blow, death.incarnation)
            if self._scenario.how not in death.how:
                self._miss("exit", f"{death.name}: the supervisor said {death.how!r}")

    async def _knock(self) -> None:
        """Give the gateway something to do: the load does not come through it."""
        if self._port is not None:
            with contextlib.suppress(OSError):  # it died of that, as it was meant to
                await status_of("POST /detokenize", self._port)

    async def _pauses(self) -> None:
        tree = self._tree
        before = await self._count_restarts()
        while not self._is_over():
            await asyncio.sleep(self._chance.uniform(*CALM_S))
            name = self._next_victim()
            victim = await process_of(self._client, name)
            pid = victim.pid if victim is not None else tree.handle.pid
            if victim is None and name != SUPERVISOR:
                continue
            blow = await asyncio.to_thread(tree.strike, name, pid, signal.SIGSTOP)
            self._history.blows.append(blow)
            await asyncio.sleep(self._scenario.pause_s)
            await asyncio.to_thread(tree.strike, name, pid, signal.SIGCONT)
            blow.whole_s = time.monotonic()
        self.num_restarts = await self._count_restarts() - before

    async def _count_restarts(self) -> int:
        return sum(process.restarts for process in await processes_of(self._client))

    def _miss(self, invariant: str, what: str) -> None:
        self.found.append(Violation(invariant, what))


def _has_text(record: Record, since_s: float) -> bool:
    return bool(record.pieces) and record.pieces[-1].at_s > since_s
