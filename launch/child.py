"""One worker process, as its supervisor holds it.

A child is started by exec with nothing but named descriptors, and watched through a pidfd: its
number cannot be taken by another process before the supervisor has reaped it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence

from hybridgen.errors import ChannelTimeout, HybridGenError, MessageCorrupt, PeerGone, StartFailed
from hybridgen.ipc.board import ProcessState
from hybridgen.ipc.control import ControlSocket, control_pair
from hybridgen.launch.plan import WorkerPlan
from hybridgen.messages import (
    ChildFact,
    Decoder,
    ErrorInfo,
    LoadProgress,
    Message,
    StandBy,
    WorkerFailed,
    WorkerReady,
    WorkerSpec,
    encode,
)

logger = logging.getLogger(__name__)

#: Native libraries of the CPU roles must not start a thread per CPU each.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}

#: Orders are few; a child whose control socket is full has stopped reading long ago.
ORDER_TIMEOUT_S = 0.05
#: Then the others get a turn.
MAX_FRAMES_AT_ONCE = 64

_decode_fact = Decoder(ChildFact)


class Child:
    """A started worker. ``fileno()`` is its pidfd: readable when it has ended."""

    def __init__(
        self,
        plan: WorkerPlan,
        incarnation: int,
        process: subprocess.Popen[bytes],
        control: ControlSocket,
    ) -> None:
        self.plan = plan
        self.incarnation = incarnation
        self.control = control
        self.state = ProcessState.STARTING
        self.ready: WorkerReady | None = None
        self.failure: WorkerFailed | None = None
        self.load_fraction = 0.0
        #: It was started ahead, so it owes nobody the time of a start.
        self.has_waited = False
        #: Why the supervisor ended it, if it did; follows how it ended.
        self.end_reason = ""
        self.is_control_open = True
        #: Frames that were no message, dropped.
        self.num_corrupt = 0
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def fileno(self) -> int:
        """The pidfd."""
        return self._pidfd

    def take_facts(
        self, *, has_ended: bool = False
    ) -> list[WorkerReady | WorkerFailed | LoadProgress]:
        """What the child has said since the last call, each once; never blocks.

        Args:
            has_ended: nothing will follow, and its last words say why: take all.
        """
        facts: list[WorkerReady | WorkerFailed | LoadProgress] = []
        for _ in itertools.count() if has_ended else range(MAX_FRAMES_AT_ONCE):
            if not self.is_control_open:
                break
            try:
                received = self.control.receive(0.0)
                if received is None:
                    break
                frame, fds = received
                for fd in fds:
                    os.close(fd)  # no child has any to give
                fact = _decode_fact(frame)
                if not isinstance(fact, WorkerReady) or self.ready is None:
                    facts.append(fact)
                    self._take(fact)
            except PeerGone:
                self.is_control_open = False
            except (MessageCorrupt, OSError) as error:  # OSError: descriptors without room
                self.num_corrupt += 1
                if self.num_corrupt == 1:
                    logger.warning("%s said nothing legible: %s", self.plan.name, error)
        return facts

    def _take(self, fact: WorkerReady | WorkerFailed | LoadProgress) -> None:
        if isinstance(fact, WorkerReady):
            self.state, self.ready = ProcessState.READY, fact
        elif isinstance(fact, WorkerFailed):
            self.failure = fact
        elif isinstance(fact, LoadProgress):
            self.load_fraction = fact.fraction

    def _distrust(self, error: HybridGenError) -> None:
        """Whoever listens like this cannot be worked with: end it, have it replaced."""
        self.failure = WorkerFailed(ErrorInfo.of(error))
        self.signal(signal.SIGKILL)

    def order(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Send an order; False when the child is not there to take it."""
        if not self.is_control_open:
            return False
        try:
            self.control.send(encode(message), fds, timeout_s=ORDER_TIMEOUT_S)
        except PeerGone:
            self.is_control_open = False
            return False
        except ChannelTimeout as error:
            self._distrust(error)
            return False
        return True

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, signum)
        except ProcessLookupError:
            return  # ended meanwhile: the pidfd says so, too

    def reap(self) -> str:
        """Collect the ended process, close its descriptors, say how it ended and why."""
        code = self._process.wait()
        self.state = ProcessState.EXITED
        self.control.close()
        os.close(self._pidfd)
        how = describe_exit(code)
        return how if self.failure is None else f"{how}: {self.failure.error.message}"


def spawn(spec: WorkerSpec, plan: WorkerPlan) -> Child:
    """Start a worker and hand it its spec. Call from the main thread only.

    The kernel's parent-death signal is tied to the spawning thread, not to the process.

    Raises:
        StartFailed: no process or no descriptor is to be had.
    """
    inherited = {*spec.segment_fds.values(), *spec.doorbell_fds.values()}
    if spec.listener_fd >= 0:
        inherited.add(spec.listener_fd)
    return spawn_with(spec, plan, spec.incarnation, inherited)


def spawn_with(
    first: WorkerSpec | StandBy, plan: WorkerPlan, incarnation: int, inherited: Iterable[int]
) -> Child:
    """The same with whatever it is to hear first.

    Raises:
        StartFailed: no process or no descriptor is to be had.
    """
    process, control = _start_interpreter(inherited, has_device=plan.role.label == "gpu")
    try:
        child = Child(plan, incarnation, process, control)
    except OSError as error:
        discard(process, control)
        raise _not_started(error) from None
    child.order(first)  # a child that died already is reported by its pidfd
    return child


def _start_interpreter(
    inherited: Iterable[int], *, has_device: bool
) -> tuple[subprocess.Popen[bytes], ControlSocket]:
    """A process that waits for a spec, and our end of its control socket.

    Raises:
        StartFailed: no process or no descriptor is to be had.
    """
    with contextlib.ExitStack() as undo:
        try:
            ours, theirs = control_pair()
            undo.callback(ours.close)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hybridgen.workers", str(theirs.fileno())],
                    pass_fds=sorted({*inherited, theirs.fileno()}),
                    stdin=subprocess.DEVNULL,
                    env=child_environment(os.environ.items(), has_device=has_device),
                    # A group of its own: the terminal's Ctrl-C reaches the supervisor alone.
                    process_group=0,
                )
        except OSError as error:
            raise _not_started(error) from None
        undo.pop_all()
    return process, ours


def discard(process: subprocess.Popen[bytes], control: ControlSocket) -> None:
    """End a process that cannot be watched."""
    process.kill()
    process.wait()
    control.close()


def _not_started(error: OSError) -> StartFailed:
    """The system gives no process, or no descriptor to hold one by."""
    return StartFailed(
        f"a process cannot be started: {error.strerror}",
        remedy="Raise the limit that was hit (ulimit -n, ulimit -u, memory, pids of the group)",
    )


def child_environment(inherited: Iterable[tuple[str, str]], *, has_device: bool) -> dict[str, str]:
    """The environment of a child; only the gpu process sees a device or native thread pools."""
    environment = dict(inherited)
    if not has_device:
        environment.update(_ONE_THREAD)
    return environment


def describe_exit(code: int) -> str:
    """How a process ended, for people, from its Popen return code."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:  # a real-time signal has no name
            return f"killed by signal {-code}"
    return "exited with code 0 without being asked" if code == 0 else f"exited with code {code}"
