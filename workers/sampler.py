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
which the loop looks in the same way, those whose last token another lane has yet to write, and
those whose grammar has not said what may come. It calls again, whenever one of them can be done,
until none is left. What a grammar allows next is worked out once a token is there, while the next
step is being computed.
"""

from __future__ import annotations

import itertools
import time
from typing import NamedTuple

from hybridgen import fault
from hybridgen.config import Config
from hybridgen.errors import InternalError
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.header import Memory
from hybridgen.ipc.logit_ring import POISON, LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import SlotTable
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import WorkerSpec
from hybridgen.sampling import _native
from hybridgen.sampling.lazy_matchers import LazyMatchers
from hybridgen.sampling.row_masks import RowMasks
from hybridgen.workers.lifecycle import IDLE_WAIT_S, Entry, WorkerContext
from hybridgen.workers.undone_row import first_undone

#: On a machine where waiters spin, how long one spins for a step that a device computes.
DEVICE_SPIN_US = 30_000
#: Between two looks after that.
DEVICE_NAP_US = 50
#: While it looks for complete rows, or waits for another lane, it reads its orders once in so many
#: looks; not at the first, since mostly one is enough and a device stands still meanwhile.
LOOKS_PER_READ = 200


class Report(NamedTuple):
    """What one native call did; the fields of ``Lane.rest_of_step``, in its order."""

    elapsed_ns: int
    num_rows: int
    num_tokens: int
    detokenizers: int  # bit i: detokenizer i has something to do
    num_stale: int
    num_invalid: int
    num_cut: int
    num_left: int  # rows that were not done …
    num_early: int  # … of them those that another lane has to do first,
    num_unmasked: int  # and those whose grammar has not said what may come


def prepare(_model_path: str, _config: Config) -> Entry:
    """What a process in waiting can do ahead: to have loaded this module is all."""
    return run


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
        self._masks = RowMasks(
            SlotTable(self._slots),
            TokenStore(self._tokens),
            LazyMatchers(context.spec.model_path, config),
            beat=context.line.beat,
        )
        self._doorbells = [
            Doorbell(context.spec.doorbell_fds[name])
            for name in context.spec.worker_names
            if name.startswith("detokenizer-")
        ]
        self._attach(context.segment("logits").buf, context.segment("sampled").buf)

    def _attach(self, logits: Memory, sampled: Memory) -> None:
        self._context.line.serve_nobody()  # who was named was named for a step of the old ring
        self._ring = LogitRing(logits)
        self._native = _native.Lane(
            logits, sampled, self._slots, self._tokens, self._logprobs, self._lane
        )
        # Behind the oldest step that can still be open: a predecessor may have left any. The gpu
        # process is already writing the step after the latest over the oldest.
        latest = self._ring.latest
        self._seen = 0 if latest == POISON else max(0, latest - (self._ring.depth - 1))
        self._is_repeating = self._context.spec.incarnation > 1 and self._name_undone(sampled)

    def _name_undone(self, sampled: Memory) -> bool:
        """Say which row the predecessor ended at, in case that it did so because of it."""
        slots = SlotTable(self._slots)
        row = first_undone(self._ring, SampledRing(sampled), slots, self._lane)
        if row is not None:
            self._context.line.serve(row.slot, row.epoch)
        return row is not None

    def turn(self, timeout_s: float) -> None:
        """Wait for the next step and do this lane's rows of it."""
        latest, step, report = self._next_step(int(timeout_s * 1e6))
        if latest == POISON:
            ring = self._context.wait_for_ring()
            if ring is not None:
                self._attach(ring[0].buf, ring[1].buf)
            return
        if step == self._seen:
            self._context.line.beat()
            self._context.read_orders()
            return
        fault.point("sampler.sample")
        self._tell(report)
        self._do_rest(step, report)
        if self._masks:
            self._masks.fill(self._native, step)
        self._seen = step
        if self._is_repeating and step >= latest:
            self._is_repeating = False
            self._context.line.serve_nobody()

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
            latest, step, report = self._native.next_step(self._seen, spin_us, timeout_us)
        except ValueError as error:
            raise InternalError(str(error)) from error
        return latest, step, Report._make(report)

    def _do_rest(self, step: int, report: Report) -> None:
        """Rows that were left: without a cut, without a mask, or with another lane before them."""
        num_looks = 0
        while report.num_left:
            if report.num_unmasked:
                is_there = self._masks.fill(self._native, step) > 0 or self._is_awaited(step)
            elif report.num_early:
                is_there = self._await_turn(step, num_looks)
            else:
                is_there = self._await_rows(step)
            if not is_there:
                return
            num_looks += 1
            try:
                report = Report._make(self._native.rest_of_step(step))
            except ValueError as error:
                raise InternalError(str(error)) from error
            self._tell(report)

    def _await_turn(self, step: int, num_looks: int) -> bool:
        """Give another lane a moment for its rows of the step before; False as in _await_rows."""
        if num_looks >= LOOKS_PER_READ or self._spin_us == 0:
            time.sleep(DEVICE_NAP_US / 1e6)
        if (num_looks + 1) % LOOKS_PER_READ == 0:
            self._context.line.beat()
            self._context.read_orders()
        return self._is_awaited(step)

    def _is_awaited(self, step: int) -> bool:
        ring, context = self._ring, self._context
        return not context.should_exit and ring.latest != POISON and ring.is_ready(step)

    def _await_rows(self, step: int) -> bool:
        """Wait for a complete row; False: nobody waits for the lane any more, or exit is due."""
        spin_us = DEVICE_SPIN_US if self._spin_us else 0
        for look in itertools.count():
            if self._native.await_rows(step, spin_us, spin_us + DEVICE_NAP_US):
                return True
            spin_us = 0
            if (look + 1) % LOOKS_PER_READ == 0:
                self._context.line.beat()
                self._context.read_orders()
            if not self._is_awaited(step):
                break
        return False

    def _tell(self, report: Report) -> None:
        """Wake the detokenizers of the rows that were done, and count them."""
        if report.num_rows == 0:
            return
        detokenizers = report.detokenizers
        while detokenizers:
            lowest = detokenizers & -detokenizers
            self._doorbells[lowest.bit_length() - 1].ring()
            detokenizers ^= lowest
        line = self._context.line
        line.tick()
        line.add("rows", report.num_rows)
        line.add("tokens", report.num_tokens)
        line.add("sampling_ns", report.elapsed_ns)
        if report.num_stale:
            line.add("stale_rows", report.num_stale)
        if report.num_invalid:
            line.add("invalid_rows", report.num_invalid)
        if report.num_cut:
            line.add("cut_rows", report.num_cut)
