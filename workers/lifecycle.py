"""What every worker process does around its role: be born, attach, report ready, drain, die.

A worker is started by exec, never by fork, so it inherits nothing but the descriptors named in
its ``WorkerSpec``, the first frame on its control socket. Three things end it with its parent,
whatever state either is in: the kernel's parent-death signal, a thread asleep on the parent's
pidfd, and end-of-file on the control socket, which every loop polls.
"""

from __future__ import annotations

import importlib
import logging
import os
import resource
import select
import signal
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeAlias

import setproctitle

from hybridgen import fault, log
from hybridgen.config import Config
from hybridgen.errors import (
    DeviceLost,
    HybridGenError,
    InternalError,
    MessageCorrupt,
    PeerGone,
    StartFailed,
)
from hybridgen.ipc import _native, stack_dump
from hybridgen.ipc.board import Board, BoardLine, ProcessState, Role
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.segment import Segment, SegmentKind
from hybridgen.messages import (
    ChildOrder,
    Decoder,
    DrainWorker,
    ErrorInfo,
    LoadProgress,
    Message,
    ReplaceRing,
    StandBy,
    WorkerFailed,
    WorkerReady,
    WorkerSpec,
    encode,
)

logger = logging.getLogger(__name__)

#: A child that has no spec by then was started by somebody else.
SPEC_TIMEOUT_S = 10.0
#: Loops look at their control socket and flags at least this often, also when nothing wakes them.
IDLE_WAIT_S = 1.0
EXIT_ORPHANED = 70
#: The end of a traceback says most; a control frame holds 128 KiB.
MAX_TRACEBACK_CHARS = 32 * 1024

SEGMENT_KINDS = {
    "slots": SegmentKind.SLOTS,
    "tokens": SegmentKind.TOKENS,
    "logits": SegmentKind.LOGITS,
    "sampled": SegmentKind.SAMPLED,
    "logprobs": SegmentKind.LOGPROBS,
    "board": SegmentKind.BOARD,
}

_decode_order = Decoder(ChildOrder)

#: Does the work of a role until told to exit; returns the exit code.
Entry: TypeAlias = "Callable[[WorkerSpec, ControlSocket], int]"


class WorkerContext:
    """A worker's ties to its tree: spec, segments, its line on the board, orders from above."""

    def __init__(self, spec: WorkerSpec, control: ControlSocket) -> None:
        self.spec = spec
        self.control = control
        self.should_exit = False
        self._segments: dict[str, Segment] = {}
        #: Frames from the supervisor that were no order, dropped.
        self.num_corrupt = 0
        self._ring_epoch = 0  # of the last new ring that was announced
        self._new_ring: ReplaceRing | None = None
        self._new_ring_fds: list[int] = []
        self.line = self._claim_line()
        signal.signal(signal.SIGTERM, self._note_drain)

    @property
    def name(self) -> str:
        """``role-index``, the same in titles, logs, the board and on sockets."""
        return f"{self.spec.role}-{self.spec.index}"

    def segment(self, name: str) -> Segment:
        """The segment called ``name`` in the spec, mapped once."""
        if name not in self._segments:
            fd = self.spec.segment_fds[name]
            self._segments[name] = Segment.attach(fd, SEGMENT_KINDS[name])
        return self._segments[name]

    def ready(self, note: str = "") -> None:
        """Tell the supervisor that this process can work."""
        self.line.set_state(ProcessState.READY)
        cpus = sorted(os.sched_getaffinity(0))
        self.control.send(encode(WorkerReady(rss_bytes=resident_bytes(), cpus=cpus, note=note)))

    def report_progress(self, fraction: float, phase: str) -> None:
        """Tell the supervisor how far the start is."""
        self.control.send(encode(LoadProgress(fraction, phase)))

    def read_orders(self) -> None:
        """Take every order that waits on the control socket; sets flags, never blocks."""
        while self._take_order(0.0):
            pass

    def wait_for_ring(self) -> tuple[Segment, Segment] | None:
        """The (logits, sampled) segments of the next gpu incarnation; None when told to exit."""
        while self._new_ring is None and not self.should_exit:
            self.line.beat()
            self._take_order(IDLE_WAIT_S)
        if self._new_ring is None:
            return None
        fds = dict(zip(self._new_ring.names, self._new_ring_fds, strict=True))
        self._new_ring = None
        for name, fd in fds.items():
            self._segments.pop(name).close()
            self._segments[name] = Segment.attach(fd, SEGMENT_KINDS[name])
        return self._segments["logits"], self._segments["sampled"]

    def _take_order(self, timeout_s: float) -> bool:
        """Wait for a frame and do what it says; False when none came."""
        fds: list[int] = []
        try:
            received = self.control.receive(timeout_s)
            if received is None:
                return False
            frame, fds = received
            order = _decode_order(frame)
        except PeerGone:
            _exit_orphaned()
        except MessageCorrupt as error:
            self.num_corrupt += 1
            logger.warning("the supervisor said nothing legible: %s", error)
            order = None
        if isinstance(order, DrainWorker):
            self.should_exit = True
        if isinstance(order, ReplaceRing) and order.epoch > self._ring_epoch:
            # Two gpu processes may die before this one looks: only the last ring counts.
            unread = self._new_ring_fds if self._new_ring is not None else []
            self._ring_epoch, self._new_ring, self._new_ring_fds = order.epoch, order, fds
            fds = unread
        for fd in fds:
            os.close(fd)
        return True

    def _claim_line(self) -> BoardLine:
        line = Board(self.segment("board").buf).line(self.spec.board_index)
        line.claim(Role.of(self.spec.role), self.spec.index, self.spec.incarnation)
        return line

    def _note_drain(self, _signum: int, _frame: FrameType | None) -> None:
        self.should_exit = True  # the handler only notes it; the loop acts


def main(argv: list[str]) -> int:
    """Run one worker; the exit code of the process.

    Args:
        argv: name, control descriptor.
    """
    control = ControlSocket(int(argv[1]))
    try:
        spec, prepared = _receive_spec(control)
    except PeerGone:
        return EXIT_ORPHANED
    except HybridGenError as error:
        return _report_failure(control, error)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stack_dump.register()
    name = f"{spec.role}-{spec.index}"
    setproctitle.setproctitle(f"hybridgen:{spec.instance}:{name}")
    log.setup(name, spec.config.server.log_level, spec.config.server.log_format)
    try:
        fault.arm(os.environ, name, spec.incarnation)
        if spec.cpus:
            os.sched_setaffinity(0, spec.cpus)
        work = prepared or _load_entry(spec.entry)
        return work(spec, control)
    except DeviceLost as error:
        # The driver may wait for the dead device for ever while a process ends in good order.
        os._exit(_report_failure(control, error))
    except HybridGenError as error:
        return _report_failure(control, error)
    except Exception as error:  # noqa: BLE001  # the process boundary: the cause must reach the supervisor
        bug = InternalError(f"{name}: {type(error).__name__}: {error}")
        return _report_failure(control, bug)


def _receive_spec(control: ControlSocket) -> tuple[WorkerSpec, Entry | None]:
    """The work to do; with the entry that a process which had to wait for it has prepared."""
    order, prepared = _receive_order(control), None
    if isinstance(order, StandBy):
        prepared = _stand_by(order)
        order = None
        while order is None:
            order = _receive_order(control)
    elif isinstance(order, WorkerSpec):
        _tie_to_parent(order.supervisor_pid)
    if not isinstance(order, WorkerSpec):
        raise StartFailed(
            "a worker got no description of its work",
            limit=f"{SPEC_TIMEOUT_S} s",
            remedy="Start workers with `hybridgen serve`",
        )
    return order, prepared


def _receive_order(control: ControlSocket) -> Message | None:
    received = control.receive(SPEC_TIMEOUT_S)
    order: Message | None = _decode_order(received[0]) if received is not None else None
    return order


def _stand_by(order: StandBy) -> Entry:
    """Do ahead of the spec what does not depend on it."""
    _tie_to_parent(order.supervisor_pid)
    setproctitle.setproctitle(order.title)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare: Callable[[str, Config], Entry] = _load(order.entry)
    return prepare(order.model_path, order.config)


def _load_entry(entry: str) -> Entry:
    work: Entry = _load(entry)
    return work


def _load(entry: str) -> Any:
    module_name, _, function_name = entry.partition(":")
    return getattr(importlib.import_module(module_name), function_name)


def _report_failure(control: ControlSocket, error: HybridGenError) -> int:
    """Tell the supervisor, which shows the cause; nobody else does."""
    text = traceback.format_exc()[-MAX_TRACEBACK_CHARS:]
    logger.debug("%s", text)
    try:
        control.send(encode(WorkerFailed(ErrorInfo.of(error), text)))
    except PeerGone:
        logger.error("%s", error)
        return EXIT_ORPHANED
    except HybridGenError as unsent:
        logger.error("%s; the supervisor cannot be told: %s", error, unsent)
    return error.exit_code


def _tie_to_parent(supervisor_pid: int) -> None:
    _native.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != supervisor_pid:  # it died before the signal was armed
        _exit_orphaned()
    parent = os.pidfd_open(supervisor_pid)
    threading.Thread(
        target=_exit_with_parent, args=(parent,), name="orphan-watch", daemon=True
    ).start()


def _exit_with_parent(parent_pidfd: int) -> None:
    poller = select.poll()
    poller.register(parent_pidfd, select.POLLIN)
    poller.poll()
    _exit_orphaned()


def _exit_orphaned() -> NoReturn:
    os._exit(EXIT_ORPHANED)


def resident_bytes() -> int:
    """Resident set of this process."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
