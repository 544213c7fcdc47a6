"""How often a process may be replaced, and how soon: pure, with an injected clock.

A restart that comes too often is not a repair. Each group of processes has a budget of restarts
in a sliding window; what happens when it is spent differs by group (``SpentAction``). The back-off
doubles with each replacement in a row that died before it was ready: that is a crash loop, while
one that had worked deserves a quick successor.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

from hybridgen.clock import Clock
from hybridgen.config import ServerSection
from hybridgen.ipc.board import Role

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0


class SpentAction(enum.Enum):
    """What a spent budget means for the tree."""

    DEGRADE = enum.auto()  # the pool goes on with what is left, and tries again later
    EXIT = enum.auto()  # the tree gives up with exit code 70


class RestartPolicy(NamedTuple):
    """The budget of one group."""

    max_restarts: int
    window_s: float
    when_spent: SpentAction


def restart_policies(config: ServerSection) -> dict[Role, RestartPolicy]:
    """The budget of every role: docs/architecture.md, section 7, with the configured limits."""
    pool = RestartPolicy(config.pool_restart_limit, 30.0, SpentAction.DEGRADE)
    return {
        Role.TOKENIZER: pool,
        Role.DETOKENIZER: pool,
        Role.SAMPLER: pool,
        Role.GATEWAY: pool,
        Role.GPU: RestartPolicy(config.gpu_restart_limit, 300.0, SpentAction.EXIT),
        Role.COSCHEDULER: RestartPolicy(config.coscheduler_restart_limit, 60.0, SpentAction.EXIT),
    }


class RestartDecision(NamedTuple):
    """What to do about one death."""

    delay_s: float
    """Spawn the replacement after this long."""
    is_spent: bool
    """The budget did not allow it; a degraded pool tries again after ``delay_s`` all the same."""


class RestartBudget:
    """Restarts of one group inside its window.

    Args:
        policy: the group's budget.
        clock: seconds that never jump.
    """

    def __init__(self, policy: RestartPolicy, clock: Clock) -> None:
        self.policy = policy
        self._clock = clock
        self._restarts_s: deque[float] = deque()
        self._num_failed_starts = 0

    def spend(self, *, was_ready: bool) -> RestartDecision:
        """A process of the group died: when may its replacement start?

        Inside the budget it waits ``0.1 · 2^k`` seconds, at most 10, where k is the number of
        deaths in a row that came before ready. Once spent, the earliest start is when the oldest
        restart leaves the window.
        """
        now_s = self._clock()
        while self._restarts_s and self._restarts_s[0] <= now_s - self.policy.window_s:
            self._restarts_s.popleft()
        self._num_failed_starts = 0 if was_ready else self._num_failed_starts + 1
        if len(self._restarts_s) >= self.policy.max_restarts:
            oldest_s = self._restarts_s.popleft() if self._restarts_s else now_s
            due_s = oldest_s + self.policy.window_s
            self._restarts_s.append(due_s)
            return RestartDecision(due_s - now_s, is_spent=True)
        delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._num_failed_starts, 30))
        self._restarts_s.append(now_s + delay_s)
        return RestartDecision(delay_s, is_spent=False)
