"""A process kept ready to replace a sampler.

While a sampler is missing its rows stand still, and with them every stream of the batch; most of
what a replacement takes is the start of an interpreter. So one is started ahead, with the role's
code loaded. It has no place in the tree and holds nothing but descriptors: with the ``WorkerSpec``
that every child gets first it becomes the replacement, and without one it is thrown away.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterable

from hybridgen.clock import Clock
from hybridgen.errors import StartFailed
from hybridgen.ipc.control import ControlSocket
from hybridgen.launch.child import (
    Child,
    describe_exit,
    discard,
    not_started,
    start_interpreter,
)
from hybridgen.launch.plan import WorkerPlan
from hybridgen.messages import WorkerSpec

logger = logging.getLogger(__name__)

#: After one that ended by itself the next is started only so much later.
RETRY_S = 10.0


class Standby:
    """At most one waiting process. ``fileno()`` is its pidfd: readable when it has ended.

    Args:
        entry: ``module:function`` of the role that it will fill; loaded ahead.
        instance: short hex name of the tree.
        clock: for due times.
    """

    def __init__(self, entry: str, instance: str, clock: Clock) -> None:
        self._arguments = (entry, f"hybridgen:{instance}:standby-0")
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._control: ControlSocket | None = None
        self._pidfd = -1
        #: When the next one may be started; None: at any time, once it is asked for.
        self.due_s: float | None = None

    @property
    def is_there(self) -> bool:
        """A process waits, or is about to."""
        return self._process is not None

    def fileno(self) -> int:
        """The pidfd of the process that waits."""
        return self._pidfd

    def keep(self, inherited: Iterable[int]) -> bool:
        """Start a process with these descriptors, unless there is one or it is too early.

        Call from the main thread only, as ``spawn``.
        """
        if self.is_there or (self.due_s is not None and self.due_s > self._clock()):
            return False
        self.due_s = None
        try:
            process, control = start_interpreter(inherited, *self._arguments, str(os.getpid()))
            try:
                self._pidfd = os.pidfd_open(process.pid)
            except OSError as error:
                discard(process, control)
                raise not_started(error) from None
        except StartFailed as error:  # the tree works without it
            logger.warning("no standby process: %s", error.message)
            self.due_s = self._clock() + RETRY_S
            return False
        self._process, self._control = process, control
        return True

    def employ(self, spec: WorkerSpec, plan: WorkerPlan) -> Child | None:
        """Give the waiting process its work; None when there is none that can be watched."""
        if self._process is None or self._control is None:
            return None
        try:
            child = Child(plan, spec.incarnation, self._process, self._control)
        except OSError as error:
            logger.warning("the standby process is of no use: %s", error.strerror)
            self.dismiss()
            return None
        self._forget()
        child.order(spec)  # one that died meanwhile is reported by its pidfd
        return child

    def bury(self) -> None:
        """If it ended by itself: reap it, and let some time pass before the next."""
        if self._process is None or self._control is None:
            return
        code = self._process.poll()
        if code is None:
            return  # the news is of one before
        how = describe_exit(code)
        logger.warning("the standby process (pid %d) %s", self._process.pid, how)
        self._control.close()
        self._forget()
        self.due_s = self._clock() + RETRY_S

    def dismiss(self) -> None:
        """End it: it is not needed, or its descriptors are of a ring that is gone."""
        self.due_s = None
        if self._process is None or self._control is None:
            return
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._process.wait()
        self._control.close()
        self._forget()

    def _forget(self) -> None:
        os.close(self._pidfd)
        self._process = self._control = None
        self._pidfd = -1
