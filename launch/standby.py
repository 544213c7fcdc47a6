"""A process kept ready to replace one of a role whose death all streams feel.

While a sampler is missing its rows stand still, and with them every stream of the batch; while a
detokenizer is, its clients get no text. Most of what a replacement takes is the start of an
interpreter and the model's vocabulary. So a process is started ahead, with both loaded. It has no
place in the tree and holds nothing but descriptors: with the ``WorkerSpec`` that every child gets
it becomes the replacement, and without one it is thrown away.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable

from hybridgen.clock import Clock
from hybridgen.errors import StartFailed
from hybridgen.launch.child import Child, spawn_with
from hybridgen.launch.plan import WorkerPlan
from hybridgen.messages import StandBy, WorkerSpec

logger = logging.getLogger(__name__)

#: After one that ended by itself the next is started only so much later.
RETRY_S = 10.0


class Standby:
    """At most one waiting process for the places of one role.

    Args:
        plan: one of the places that it may come to.
        order: what it does first.
        clock: for due times.

    Attributes:
        child: the process that waits, if any.
        due_s: when the next one may be started; None: at any time, once it is asked for.
    """

    def __init__(self, plan: WorkerPlan, order: StandBy, clock: Clock) -> None:
        self.child: Child | None = None
        self.due_s: float | None = None
        self._plan = plan
        self._order = order
        self._clock = clock

    def keep(self, inherited: Iterable[int]) -> bool:
        """Start a process with these descriptors, unless there is one or it is too early.

        Call from the main thread only, as ``spawn``.
        """
        if self.child is not None or (self.due_s is not None and self.due_s > self._clock()):
            return False
        self.due_s = None
        try:
            self.child = spawn_with(self._order, self._plan, 0, inherited)
        except StartFailed as error:  # the tree works without it
            logger.warning("no standby %s: %s", self._plan.role.label, error.message)
            self.due_s = self._clock() + RETRY_S
        return self.child is not None

    def employ(self, spec: WorkerSpec, plan: WorkerPlan) -> Child | None:
        """Give the waiting process its work; None when there is none that takes it."""
        child = self.child
        if child is None:
            return None
        if not child.order(spec):
            logger.warning("the standby %s is of no use", self._plan.role.label)
            self.dismiss()
            return None
        self.child = None
        child.plan, child.incarnation, child.has_waited = plan, spec.incarnation, True
        return child  # one that dies now is reported by its pidfd

    def bury(self) -> None:
        """It ended by itself: reap it, and let some time pass before the next."""
        child, self.child = self.child, None
        if child is None:
            return
        child.take_facts(has_ended=True)
        how = child.reap()
        logger.warning("the standby %s (pid %d) %s", self._plan.role.label, child.pid, how)
        self.due_s = self._clock() + RETRY_S

    def dismiss(self) -> None:
        """End it: it is not needed, or its descriptors are of a ring that is gone."""
        self.due_s = None
        child, self.child = self.child, None
        if child is not None:
            child.signal(signal.SIGKILL)
            child.reap()
