"""The compute ring on a device that runs ahead: no Python between a token and the next step.

While the samplers answer step s, step s + 1 is already enqueued behind the device's own wait for
them. So the host has a whole step's time to read the answers of s, take orders, and enqueue
s + 2 with what changed. Where the device chooses tokens itself it waits for nobody, and samplers
only write down what it chose. Pieces of prefill are enqueued in between (``prefill_lane.py``).
"""

from __future__ import annotations

import collections
import logging
import time

import numpy as np

from hybridgen import fault
from hybridgen.errors import OutOfDeviceMemory
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import ErrorInfo
from hybridgen.models.device_engine import DeviceEngine, Output
from hybridgen.scheduler.batch_row import SAMPLED_DTYPE, check_results
from hybridgen.scheduler.device_batch import DeviceBatch
from hybridgen.scheduler.device_row import StepPlan
from hybridgen.scheduler.row_parameters import RowParameters, read_parameters
from hybridgen.scheduler.sampling_place import SamplingPlace
from hybridgen.workers.lifecycle import IDLE_WAIT_S, WorkerContext
from hybridgen.workers.live_lanes import LiveLanes
from hybridgen.workers.order_desk import OrderDesk
from hybridgen.workers.prefill_lane import PrefillLane

logger = logging.getLogger(__name__)

#: While samplers work, the loop looks at its orders this often.
SAMPLER_WAIT_US = 20_000
#: … and this often while there is prefill to enqueue or to wait for, or the host publishes.
BUSY_WAIT_US = 200
#: A released device must be through with what was enqueued within this time.
QUIET_LIMIT_S = 10.0


class DeviceRing:
    """The loop around a device engine."""

    def __init__(self, context: WorkerContext, engine: DeviceEngine) -> None:
        spec = context.spec
        self._context = context
        self._engine = engine
        self._tokens = TokenStore(context.segment("tokens").buf)
        self._ring = LogitRing(context.segment("logits").buf)
        self._sampled = SampledRing(context.segment("sampled").buf)
        self._slots = SlotTable(context.segment("slots").buf)
        self._hand_off = engine.connect(self._ring, self._sampled)
        self._has_cuts = self._hand_off.has_cuts and self._ring.cut_capacity > 0
        self._sampling = SamplingPlace(spec.config.device.sample_on_gpu)
        self._finished_ns = 0  # when the last step was over; 0: it was not an ordinary one
        self._stepped_ns = 0  # when the last step was over; 0: no step was due since
        self._lanes = LiveLanes(context)
        self._spin_us = max(0, spec.config.pools.spin_us)
        self._batch = DeviceBatch(
            max_rows=self._ring.max_rows,
            block_size=engine.block_size,
            max_model_len=self._tokens.max_model_len,
            num_lanes=self._ring.num_lanes,
            num_logits_slots=engine.num_logits_slots,
            parameters_of=self._parameters_of if self._has_cuts else None,
        )
        self._plans: collections.deque[StepPlan] = collections.deque()  # in flight
        self._last: StepPlan | None = None  # the newest
        self._prefill = PrefillLane(
            context, engine, self._batch, self._tokens, self._ring.vocab_size
        )
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
        self._prefill.collect()
        if self._batch.is_idle:
            self._stepped_ns = 0
            self._context.line.beat()
            self._desk.send_report(self._ring.latest)
            self._desk.rest(IDLE_WAIT_S)
            return
        self._spread_over_live_lanes()
        self._enqueue_steps()
        self._prefill.begin()
        if self._plans:
            self._finish_oldest()
        elif self._prefill.is_out:
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
        while len(self._plans) < self._hand_off.max_in_flight and self._prefill.lets_step():
            step = self._ring.latest + 1 if self._last is None else self._last.step + 1
            wants_device = self._has_cuts and self._sampling.wants_device(self._batch.num_running)
            plan = self._batch.plan_step(step, wants_device=wants_device)
            if plan is None:
                return
            fault.point("gpu.step")
            try:
                self._compute(plan)
            except OutOfDeviceMemory as error:
                said = str(error)  # not the error itself, which holds everything that it passed
                logger.warning("step %d of %d rows is given back: %s", step, plan.num_rows, said)
                self._context.line.add("memory_full", 1)
                self._batch.give_back(ErrorInfo.of(error))
                return
            self._publish(plan)
            self._prefill.step_begun()

    def _compute(self, plan: StepPlan) -> None:
        """What the device has to do; the headers are in the ring before it can publish.

        Raises:
            OutOfDeviceMemory: what was enqueued changes nothing that anybody will read.
        """
        engine, step, last = self._engine, plan.step, self._last
        self._ring.write_records(step, plan.records.view(np.uint8).data, plan.num_rows)
        if len(plan.indices):
            engine.apply(plan.indices, plan.values)
        if plan.parameters is not None:
            engine.set_parameters(plan.parameters)
        if plan.num_decode:
            answered = 0
            if last is not None and not last.is_on_device:
                answered = last.step
                self._hand_off.await_lanes(answered, last.lanes)
            engine.forward(plan.num_decode, step, answered)
        engine.emit(step, plan.num_decode, plan.logits_slots, self._output_of(plan))

    def _publish(self, plan: StepPlan) -> None:
        self._hand_off.publish(plan.step)
        self._ring.announce(plan.step)
        if self._has_cuts and not plan.is_on_device:
            self._engine.copy_rows_aside(plan.step, plan.num_rows)
        self._plans.append(plan)
        self._last = plan

    def _output_of(self, plan: StepPlan) -> Output:
        if not self._has_cuts:
            return Output.ROWS
        return Output.TOKENS if plan.is_on_device else Output.CUTS

    def _parameters_of(self, slot: int) -> RowParameters:
        prompt_len = self._slots.load(slot, SlotWord.PROMPT_LEN)
        return read_parameters(self._slots.parameters(slot), prompt_len)

    def _finish_oldest(self) -> None:
        """Wait for the samplers of the oldest step, and take their answers in."""
        plan = self._plans[0]
        started_ns = time.monotonic_ns()
        for lane in plan.lanes:
            while not self._is_done(plan.step, lane):
                if self._context.should_exit:
                    return
        self._plans.popleft()
        self._note_time(plan)
        self._prefill.step_done()
        results = np.frombuffer(self._sampled.raw(plan.step, plan.num_rows), dtype=SAMPLED_DTYPE)
        check_results(results, self._ring.vocab_size)
        self._batch.complete(plan.step, results["token_id"], results["flags"])
        line = self._context.line
        line.tick()
        line.add("steps", 1)
        line.add("rows", plan.num_rows)
        line.set("open_steps", len(self._plans))
        done_ns = time.monotonic_ns()
        line.add("sample_wait_ns", done_ns - started_ns)
        line.add("step_ns", done_ns - (self._stepped_ns or started_ns))
        self._stepped_ns = done_ns

    def _note_time(self, plan: StepPlan) -> None:
        """Measure a step if it follows another, and nothing was computed beside either."""
        now_ns = time.monotonic_ns()
        is_ordinary = not (plan.logits_slots or self._prefill.is_out) and plan.parameters is None
        if is_ordinary and self._finished_ns:
            took_ns = now_ns - self._finished_ns
            self._sampling.note(plan.num_rows, plan.is_on_device, took_ns)
        self._finished_ns = now_ns if is_ordinary else 0

    def _is_done(self, step: int, lane: int) -> bool:
        """Whether the lane is done; enqueues prefill meanwhile, or else sleeps a while."""
        if self._sampled.done(step, lane) == step:
            return True
        is_free = self._hand_off.poll()
        if self._prefill.is_sending:
            self._prefill.advance(is_host_free=is_free)
            return False
        if not is_free:
            return self._sampled.wait_done(step, lane, self._spin_us, self._spin_us or BUSY_WAIT_US)
        is_calm = not self._prefill.is_out
        wait_us = SAMPLER_WAIT_US if is_calm else BUSY_WAIT_US
        is_done = self._sampled.wait_done(step, lane, self._spin_us, wait_us)
        if not is_done:
            if self._ring.latest >= step:  # it is the sampler's turn, not the device's
                self._context.line.beat()
            else:
                self._engine.is_quiet()  # a device that failed says so when it is asked
            if is_calm:
                self._context.read_orders()
            self._prefill.collect()
            self._prefill.begin()
        return is_done

    def _spread_over_live_lanes(self) -> None:
        lanes = self._lanes.changed()
        if lanes is not None:
            self._batch.set_live_lanes(lanes)

    def _work_on_prefill(self) -> None:
        """No step is in flight: enqueue the piece, or wait a moment for the device."""
        self._stepped_ns = 0
        if not self._prefill.is_sending:
            self._desk.rest(BUSY_WAIT_US / 1e6)
        while self._prefill.is_sending:
            self._prefill.advance()
