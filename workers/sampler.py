"""The sampler: logits row + parameters + token history → next token id.

It owns one lane of the logit ring. One native call waits for a step, samples its rows of the lane
and writes the tokens, so nothing of this loop is paid per row, and no Python runs between a step
and the lane's ``done``, for which a device stands still: counting and ringing come after. Sampling
is a pure function of what lies in shared memory; a replacement therefore starts by repeating every
step in the ring whose ``done`` word is missing, and arrives at the same tokens.

A device that publishes steps itself cannot wake anybody. There the loop sleeps only while no step
was announced; from then on it looks at ``latest`` until the step is there: without a pause for
``DEVICE_SPIN_US``, which most decode steps are shorter than, then once every ``DEVICE_NAP_US``.

A device publishes a step as soon as what most rows come to is there: their cuts. Rows whose cut
gives the token are done in the first call. Others are left: those that need the complete row, for
which the loop looks at ``whole`` in the same way, and those whose last token another lane has yet
to write. It calls again until none is.
"""

from __future__ import annotations

import itertools
import time

from hybridgen.errors import InternalError
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.header import Memory
from hybridgen.ipc.logit_ring import POISON, LogitRing
from hybridgen.messages import WorkerSpec
from hybridgen.sampling import _native
from hybridgen.workers.lifecycle import IDLE_WAIT_S, WorkerContext

#: On a machine where waiters spin, how long one spins for a step that a device computes.
DEVICE_SPIN_US = 30_000
#: Between two looks after that.
DEVICE_NAP_US = 50
#: While it looks for complete rows, or waits for another lane, it reads its orders once in so many
#: looks; not at the first, since mostly one is enough and a device stands still meanwhile.
LOOKS_PER_READ = 200

#: What one native call did: see ``Lane.rest_of_step``.
Report = tuple[int, int, int, int, int, int, int, int, int]


def run(spec: WorkerSpec, control: ControlSocket) -> int:
    """Serve one lane until told to exit; the exit code."""
    context = WorkerContext(spec, control)
    sampler = Sampler(context)
    context.ready()
    while not context.should_exit:
        sampler.turn(IDLE_WAIT_S)
    return 0


class Sampler:
    """One lane, over whatever ring the current gpu incarnation has."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._lane = context.spec.index
        config = context.spec.config
        self._spin_us = max(0, config.pools.spin_us)
        self._is_on_device = config.device.device == "cuda"
        self._is_spin_spent = self._spin_us == 0
        self._slots = context.segment("slots").buf
        self._tokens = context.segment("tokens").buf
        self._logprobs = context.segment("logprobs").buf
        self._doorbells = [
            Doorbell(context.spec.doorbell_fds[name])
            for name in context.spec.worker_names
            if name.startswith("detokenizer-")
        ]
        self._attach(context.segment("logits").buf, context.segment("sampled").buf)

    def _attach(self, logits: Memory, sampled: Memory) -> None:
        self._ring = LogitRing(logits)
        self._native = _native.Lane(
            logits, sampled, self._slots, self._tokens, self._logprobs, self._lane
        )
        # Behind the oldest step that can still be open: a predecessor may have left any. The gpu
        # process is already writing the step after the latest over the oldest.
        latest = self._ring.latest
        self._seen = 0 if latest == POISON else max(0, latest - (self._ring.depth - 1))

    def turn(self, timeout_s: float) -> None:
        """Wait for the next step and do this lane's rows of it."""
        latest, step, report = self._next_step(int(timeout_s * 1e6))
        if latest == POISON:
            ring = self._context.wait_for_ring()
            if ring is not None:
                self._attach(ring[0].buf, ring[1].buf)
            return
        if step == self._seen:
            self._context.read_orders()
            return
        self._tell(report)
        self._do_rest(step, report)
        self._seen = step

    def _next_step(self, timeout_us: int) -> tuple[int, int, Report]:
        """The ring's ``latest`` once it is new or the time is over, and what came of it."""
        ring = self._ring
        if not self._is_on_device:
            return self._take(self._spin_us, timeout_us)
        announced = ring.announced
        if announced <= self._seen:
            self._is_spin_spent = self._spin_us == 0
            ring.wait_announced(announced, self._spin_us, timeout_us)
            return self._take(0, 0)
        spin_us = 0 if self._is_spin_spent else DEVICE_SPIN_US
        taken = self._take(spin_us, spin_us + DEVICE_NAP_US)
        self._is_spin_spent = taken[0] == self._seen or self._spin_us == 0
        return taken

    def _take(self, spin_us: int, timeout_us: int) -> tuple[int, int, Report]:
        try:
            return self._native.next_step(self._seen, spin_us, timeout_us)
        except ValueError as error:
            raise InternalError(str(error)) from error

    def _do_rest(self, step: int, report: Report) -> None:
        """Rows that were left: those of other lanes before them, and those without a cut."""
        num_left, num_early = report[-2:]
        num_looks = 0
        while num_left:
            is_there = self._await_turn(step, num_looks) if num_early else self._await_whole(step)
            if not is_there:
                return
            num_looks += 1
            try:
                report = self._native.rest_of_step(step)
            except ValueError as error:
                raise InternalError(str(error)) from error
            self._tell(report)
            num_left, num_early = report[-2:]

    def _await_turn(self, step: int, num_looks: int) -> bool:
        """Give another lane a moment for its rows of the step before; False as in _await_whole."""
        if num_looks >= LOOKS_PER_READ or self._spin_us == 0:
            time.sleep(DEVICE_NAP_US / 1e6)
        if (num_looks + 1) % LOOKS_PER_READ == 0:
            self._context.read_orders()
        return self._is_awaited(step)

    def _is_awaited(self, step: int) -> bool:
        ring, context = self._ring, self._context
        return not context.should_exit and ring.latest != POISON and ring.is_ready(step)

    def _await_whole(self, step: int) -> bool:
        """Wait for the complete rows; False: the lane is not awaited any more, or exit is due."""
        ring = self._ring
        spin_us = DEVICE_SPIN_US if self._spin_us else 0
        for look in itertools.count():
            if ring.wait_whole(step, spin_us, spin_us + DEVICE_NAP_US):
                return True
            spin_us = 0
            if (look + 1) % LOOKS_PER_READ == 0:
                self._context.read_orders()
            if not self._is_awaited(step):
                break
        return False

    def _tell(self, report: Report) -> None:
        """Wake the detokenizers of the rows that were done, and count them."""
        elapsed_ns, num_rows, num_tokens, detokenizers, num_stale, num_invalid, num_cut, *_ = report
        if num_rows == 0:
            return
        while detokenizers:
            lowest = detokenizers & -detokenizers
            self._doorbells[lowest.bit_length() - 1].ring()
            detokenizers ^= lowest
        line = self._context.line
        line.tick()
        line.add("rows", num_rows)
        line.add("tokens", num_tokens)
        line.add("sampling_ns", elapsed_ns)
        if num_stale:
            line.add("stale_rows", num_stale)
        if num_invalid:
            line.add("invalid_rows", num_invalid)
        if num_cut:
            line.add("cut_rows", num_cut)
