"""The compute ring on a device that runs ahead: no Python between a token and the next step.

While the samplers answer step s, step s + 1 is already enqueued behind the device's own wait for
them. So the host has a whole step's time to read the answers of s, take orders, and enqueue
s + 2 with what changed. Pieces of prefill are enqueued layer by layer in between, on a stream of
their own, and never by waiting for the device.
"""

from __future__ import annotations

import collections
import logging
import time
from typing import NamedTuple

import numpy as np

from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.token_store import TokenStore
from hybridgen.models.device_engine import DeviceEngine, PrefillRun
from hybridgen.scheduler.batch_row import SAMPLED_DTYPE
from hybridgen.scheduler.device_batch import DeviceBatch
from hybridgen.scheduler.device_row import DeviceChunk, StepPlan
from hybridgen.workers.lifecycle import IDLE_WAIT_S, WorkerContext
from hybridgen.workers.live_lanes import LiveLanes
from hybridgen.workers.order_desk import OrderDesk

logger = logging.getLogger(__name__)

#: While samplers work, the loop looks at its orders this often.
SAMPLER_WAIT_US = 20_000
#: … and this often while there is prefill to enqueue or to wait for, or the host publishes.
BUSY_WAIT_US = 200
#: Pieces of prefill are multiples of this where they can: products are made in tiles.
WHOLE_TOKENS = 64
#: Fewer tokens beside a step take as long: then it is the host that is busy enqueueing them.
LEAST_TOKENS = 256
#: A step or a piece of prefill may take this long before the process counts as hanging.
STEP_LIMIT_NS = 60 * 10**9
#: A released device must be through with what was enqueued within this time.
QUIET_LIMIT_S = 10.0


class _Piece(NamedTuple):
    chunk: DeviceChunk
    run: PrefillRun
    started_ns: int


class DeviceRing:
    """The loop around a device engine."""

    def __init__(self, context: WorkerContext, engine: DeviceEngine) -> None:
        spec = context.spec
        self._context = context
        self._engine = engine
        self._tokens = TokenStore(context.segment("tokens").buf)
        self._ring = LogitRing(context.segment("logits").buf)
        self._sampled = SampledRing(context.segment("sampled").buf)
        self._hand_off = engine.connect(self._ring, self._sampled)
        self._lanes = LiveLanes(context)
        self._spin_us = max(0, spec.config.pools.spin_us)
        self._budget_ms = spec.config.device.prefill_budget_ms
        self._num_budget_left = engine.max_chunk  # tokens of prefill beside this step
        self._us_per_token = 0.0  # of prefill, as measured
        self._prefill_free_ns = 0  # when the device was through with the newest finished piece
        self._batch = DeviceBatch(
            max_rows=self._ring.max_rows,
            block_size=engine.block_size,
            max_model_len=self._tokens.max_model_len,
            num_lanes=self._ring.num_lanes,
            num_logits_slots=engine.num_logits_slots,
        )
        self._plans: collections.deque[StepPlan] = collections.deque()  # in flight
        self._last: StepPlan | None = None  # the newest
        self._pieces: collections.deque[_Piece] = collections.deque()
        self._sending: PrefillRun | None = None  # not all of its layers are enqueued
        self._desk = OrderDesk(context, self._batch, engine.num_blocks)

    @property
    def hand_off_name(self) -> str:
        """How device and samplers tell each other, for people."""
        return self._hand_off.name

    def introduce(self) -> None:
        """Tell the coscheduler who is here."""
        self._desk.introduce()

    def turn(self) -> None:
        """One turn of the loop; sleeps when there is nothing to compute."""
        self._desk.take_orders()
        self._collect_prefill()
        if self._batch.is_idle:
            self._desk.send_report(self._ring.latest)
            self._desk.rest(IDLE_WAIT_S)
            return
        self._context.line.set_busy_until_ns(time.monotonic_ns() + STEP_LIMIT_NS)
        self._spread_over_live_lanes()
        self._enqueue_steps()
        self._begin_prefill()
        if self._plans:
            self._finish_oldest()
        elif self._pieces:
            self._work_on_prefill()
        self._desk.send_report(self._ring.latest)

    def close(self) -> None:
        """Release a waiting device, then everything else."""
        self._hand_off.release()
        until_s = time.monotonic() + QUIET_LIMIT_S
        while not self._engine.is_quiet():
            if time.monotonic() > until_s:
                logger.error("the device is not through after %.0f s", QUIET_LIMIT_S)
                break  # the driver ends its work with the process
            time.sleep(0.001)
        else:
            self._hand_off.close()
            self._engine.close()
        self._desk.close()

    # --- steps ----------------------------------------------------------------------------------

    def _enqueue_steps(self) -> None:
        while len(self._plans) < self._hand_off.max_in_flight:
            step = self._ring.latest + 1 if self._last is None else self._last.step + 1
            plan = self._batch.plan_step(step)
            if plan is None:
                return
            self._enqueue(plan)

    def _enqueue(self, plan: StepPlan) -> None:
        """Everything of one step; the headers are in the ring before the device can publish."""
        engine, step, last = self._engine, plan.step, self._last
        self._ring.write_records(step, plan.records.view(np.uint8).data, plan.num_rows)
        if len(plan.indices):
            engine.apply(plan.indices, plan.values)
        if plan.num_decode:
            if last is not None:
                self._hand_off.await_lanes(last.step, last.lanes)
                engine.take_results(last.step, last.num_rows)
            engine.forward(plan.num_decode)
        engine.emit(step, plan.num_decode, plan.logits_slots)
        self._hand_off.publish(step)
        self._ring.announce(step)
        self._plans.append(plan)
        self._last = plan

    def _finish_oldest(self) -> None:
        """Wait for the samplers of the oldest step, and take their answers in."""
        plan = self._plans[0]
        started_ns = time.monotonic_ns()
        for lane in plan.lanes:
            while not self._is_done(plan.step, lane):
                if self._context.should_exit:
                    return
        self._plans.popleft()
        self._renew_budget()
        results = np.frombuffer(self._sampled.raw(plan.step, plan.num_rows), dtype=SAMPLED_DTYPE)
        self._batch.complete(plan.step, results["token_id"], results["flags"])
        line = self._context.line
        line.tick()
        line.add("steps", 1)
        line.add("rows", plan.num_rows)
        line.add("sample_wait_ns", time.monotonic_ns() - started_ns)

    def _is_done(self, step: int, lane: int) -> bool:
        """Is the lane done? Works on what there is meanwhile, else sleeps a while."""
        if self._sampled.done(step, lane) == step:
            return True
        is_free = self._hand_off.poll()
        if self._sending is not None:
            self._send_layer()
            return False
        is_calm = is_free and not self._pieces
        wait_us = SAMPLER_WAIT_US if is_calm else BUSY_WAIT_US
        if not is_free:
            return self._sampled.wait_done(step, lane, self._spin_us, self._spin_us or BUSY_WAIT_US)
        is_done = self._sampled.wait_done(step, lane, self._spin_us, wait_us)
        if not is_done:
            if is_calm:
                self._context.read_orders()
            self._collect_prefill()
            self._begin_prefill()
        return is_done

    def _spread_over_live_lanes(self) -> None:
        lanes = self._lanes.changed()
        if lanes is not None:
            self._batch.set_live_lanes(lanes)

    # --- prefill --------------------------------------------------------------------------------

    def _begin_prefill(self) -> None:
        if self._sending is not None or not self._engine.has_room():
            return
        most = self._chunk_size()
        chunk = self._batch.next_prefill(most) if most > 0 else None
        if chunk is None:
            return
        self._num_budget_left -= chunk.stop - chunk.start
        ids = np.asarray(self._tokens.row(chunk.slot)[chunk.start : chunk.stop])
        run = self._engine.prefill(ids, chunk.start, chunk.blocks, chunk.logits_slot)
        self._pieces.append(_Piece(chunk, run, time.monotonic_ns()))
        self._sending = run

    def _chunk_size(self) -> int:
        """Tokens that may be computed beside the step under way; 0: no more of them.

        Prefill goes before decode on the device, or a decode step, whose kernels follow each other
        without a gap, would leave it nothing. So what bounds a step's delay is this budget.
        """
        most = self._engine.max_chunk
        if not self._batch.num_running:
            return most
        most = min(most, self._num_budget_left)
        return most if most < WHOLE_TOKENS else most // WHOLE_TOKENS * WHOLE_TOKENS

    def _renew_budget(self) -> None:
        """For one decode step, by how long tokens took; a whole piece before that is known."""
        self._num_budget_left = self._engine.max_chunk
        if self._us_per_token > 0.0:
            num_tokens = int(self._budget_ms * 1000 / self._us_per_token)
            self._num_budget_left = max(LEAST_TOKENS, num_tokens)

    def _send_layer(self) -> None:
        if self._sending is not None and not self._sending.advance():
            self._sending = None

    def _work_on_prefill(self) -> None:
        """Nothing is decoded: enqueue the piece, or wait a moment for the device."""
        if self._sending is not None:
            while self._sending is not None:
                self._send_layer()
        else:
            self._desk.rest(BUSY_WAIT_US / 1e6)

    def _collect_prefill(self) -> None:
        line = self._context.line
        while self._pieces and self._pieces[0].run is not self._sending:
            chunk, run, started_ns = self._pieces[0]
            if not run.is_done():
                return
            self._pieces.popleft()
            self._batch.prefill_done(chunk)
            num_tokens = chunk.stop - chunk.start
            now_ns = time.monotonic_ns()
            elapsed_ns = now_ns - max(started_ns, self._prefill_free_ns)
            self._prefill_free_ns = now_ns
            if num_tokens >= WHOLE_TOKENS:
                measured = elapsed_ns / 1000 / num_tokens
                self._us_per_token = min(self._us_per_token or measured, measured)
            line.tick()
            line.add("prefill_tokens", num_tokens)
            line.add("prefill_ns", elapsed_ns)
