"""The gpu process: owns weights and KV cache, runs the compute ring.

One turn: take orders, run at most one budget of prefill, run one decode step over the rows,
publish their logits, wait for the samplers, read the ids back. It never samples, never looks at
what a token means, and exchanges no message per token; membership comes and goes as messages
between steps. This is the host-wait form of the loop, for the CPU device; ``device_ring`` has the
form for a device that runs ahead.
"""

from __future__ import annotations

import logging
import os
import time

import numpy as np
import numpy.typing as npt

from hybridgen import fault
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.token_store import TokenStore, check_ids
from hybridgen.messages import WorkerSpec
from hybridgen.models.device_error import device_loss
from hybridgen.models.engine import Engine, FloatArray
from hybridgen.models.registry import Progress, load_engine
from hybridgen.scheduler.batch_row import SAMPLED_DTYPE, PrefillChunk, check_results
from hybridgen.scheduler.step_batch import StepBatch
from hybridgen.workers.device_ring import DeviceRing
from hybridgen.workers.lifecycle import IDLE_WAIT_S, WorkerContext
from hybridgen.workers.live_lanes import LiveLanes
from hybridgen.workers.order_desk import OrderDesk
from hybridgen.workers.start_phases import StartPhases

#: hg_row records (HEADER_DTYPE), one per row of a step.
RowRecords = npt.NDArray[np.void]

logger = logging.getLogger(__name__)

#: While samplers work, the loop looks at its orders and at the samplers' health this often.
SAMPLER_WAIT_US = 20_000
#: A prefill chunk may take this long for each of its tokens, beyond what any process may take.
CHUNK_LIMIT_NS_PER_TOKEN = 50 * 10**6


def run(spec: WorkerSpec, control: ControlSocket) -> int:
    """Load the model and run steps until told to exit; the exit code."""
    context = WorkerContext(spec, control)
    phases = StartPhases.of_this_process()
    phases.begin("reading the model's description")
    info = inspect_model(spec.model_path, spec.config)
    phases.begin("loading libraries")

    def on_progress(fraction: float, phase: str) -> None:
        phases.begin(phase)
        context.report_progress(fraction, phase)

    try:
        ring, note = _make_ring(context, info, on_progress)
        phases.begin("making the ring")
        ring.introduce()
        context.ready(note=note)
        logger.info("ready after %s", phases)
        while not context.should_exit:
            ring.turn()
    except Exception as error:
        lost = device_loss(error)
        if lost is None:
            raise
        raise lost from error
    ring.close()
    return 0


def _make_ring(
    context: WorkerContext, info: ModelInfo, on_progress: Progress
) -> tuple[ComputeRing | DeviceRing, str]:
    """The loop for the configured device, and what to say about it."""
    config = context.spec.config
    if config.device.device == "cuda":
        # Triton and the driver's binding are not there on machines without a device.
        from hybridgen.models.cuda.load import load_cuda_engine  # noqa: PLC0415

        # This process is pinned to one CPU; reading weights takes several of the tree's.
        cpus = os.sched_getaffinity(context.spec.supervisor_pid)
        device_engine = load_cuda_engine(info, config, on_progress, cpus)
        device_ring = DeviceRing(context, device_engine)
        note = f"{device_engine.num_blocks} KV blocks, hand-off by {device_ring.hand_off_name}"
        return device_ring, note
    engine = load_engine(info, config, on_progress)
    return ComputeRing(context, engine), f"{engine.num_blocks} KV blocks"


class ComputeRing:
    """The loop around an engine."""

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        spec = context.spec
        self._context = context
        self._engine = engine
        self._tokens = TokenStore(context.segment("tokens").buf)
        self._ring = LogitRing(context.segment("logits").buf)
        self._sampled = SampledRing(context.segment("sampled").buf)
        self._lanes = LiveLanes(context)
        self._spin_us = max(0, spec.config.pools.spin_us)
        self._chunk_budget = spec.config.scheduler.prefill_chunk
        self._batch = StepBatch(
            max_rows=self._ring.max_rows,
            block_size=engine.block_size,
            prefill_chunk=self._chunk_budget,
            max_model_len=self._tokens.max_model_len,
            num_lanes=self._ring.num_lanes,
        )
        self._logits = [self._logits_of(step) for step in range(self._ring.depth)]
        self._desk = OrderDesk(context, self._batch, engine.num_blocks)

    def _logits_of(self, step: int) -> FloatArray:
        """float32 [max_rows, vocab] over the ring's own memory."""
        flat = np.asarray(self._ring.logits(step))
        rows = flat.reshape(self._ring.max_rows, self._ring.row_floats)
        return rows[:, : self._ring.vocab_size]

    def introduce(self) -> None:
        """Tell the coscheduler who is here, with how many blocks and which rows."""
        self._desk.introduce()

    def turn(self) -> None:
        """One turn of the loop; sleeps when there is nothing to compute."""
        self._desk.take_orders()
        if self._batch.is_idle:
            self._rest()
            return
        step = self._ring.latest + 1
        self._ring.begin(step)
        logits = self._logits[step % self._ring.depth]
        num_prefilled = self._prefill(logits)
        self._decode(logits)
        num_rows = self._sample(step)
        self._desk.send_report(step)
        if not num_rows and not num_prefilled:
            self._rest()  # every row waits for blocks: nothing moves until an order comes

    def close(self) -> None:
        """Release the engine and the socket."""
        self._engine.close()
        self._desk.close()

    def _decode(self, logits: FloatArray) -> None:
        rows = self._batch.decode_rows()
        if rows.num_rows == 0:
            return
        fault.point("gpu.step")
        started_ns = time.monotonic_ns()
        self._engine.decode(rows.ids, rows.positions, rows.block_tables, logits[: rows.num_rows])
        line = self._context.line
        line.tick()
        line.add("steps", 1)
        line.add("rows", rows.num_rows)
        line.add("step_ns", time.monotonic_ns() - started_ns)

    def _rest(self) -> None:
        self._context.line.beat()
        self._desk.send_report(self._ring.latest)
        self._desk.rest(IDLE_WAIT_S)

    def _prefill(self, logits: FloatArray) -> int:
        """Run prompt chunks within the budget; returns how many tokens that was.

        A row whose prompt is complete puts its logits behind the running rows' of this step.
        """
        num_tokens = 0
        while num_tokens < self._chunk_budget:
            chunk = self._batch.next_prefill(self._chunk_budget - num_tokens)
            if chunk is None:
                break
            self._run_chunk(chunk, logits[chunk.logits_row] if chunk.is_last else None)
            num_tokens += chunk.stop - chunk.start
        return num_tokens

    def _run_chunk(self, chunk: PrefillChunk, logits_out: FloatArray | None) -> None:
        line, num_tokens = self._context.line, chunk.stop - chunk.start
        started_ns = time.monotonic_ns()
        line.set_busy_until_ns(started_ns + num_tokens * CHUNK_LIMIT_NS_PER_TOKEN)
        line.serve(chunk.slot, chunk.epoch)
        fault.point("gpu.prefill")
        ids = np.asarray(self._tokens.row(chunk.slot)[chunk.start : chunk.stop]).copy()
        check_ids(int(ids.min()), int(ids.max()), self._ring.vocab_size)
        self._engine.prefill(ids, chunk.start, chunk.blocks, logits_out)
        self._batch.prefill_done(chunk)
        line.serve_nobody()
        line.set_busy_until_ns(0)
        line.tick()
        line.add("prefill_tokens", num_tokens)
        line.add("prefill_ns", time.monotonic_ns() - started_ns)

    def _sample(self, step: int) -> int:
        """Publish the step, wait until every row has its token, take the tokens in.

        Returns:
            Rows of the step.
        """
        self._spread_over_live_lanes()
        records = self._batch.row_records()
        if len(records) == 0:
            return 0
        self._publish(step, records)
        started_ns = time.monotonic_ns()
        while not self._await_samplers(step, records):
            if self._context.should_exit:
                return len(records)
            step = self._publish_again(step, records)
        self._context.line.add("sample_wait_ns", time.monotonic_ns() - started_ns)
        self._context.line.set("open_steps", 0)
        results = np.frombuffer(self._sampled.raw(step, len(records)), dtype=SAMPLED_DTYPE).copy()
        check_results(results, self._ring.vocab_size)
        self._batch.apply_arrays(results["token_id"], results["flags"])
        return len(records)

    def _publish(self, step: int, records: RowRecords) -> None:
        self._ring.write_records(step, records.view(np.uint8).data, len(records))
        self._ring.publish(step)
        self._context.line.set("open_steps", 1)

    def _await_samplers(self, step: int, records: RowRecords) -> bool:
        """Until each lane of the step is done; False to give up on it."""
        for lane in set(records["lane"].tolist()):
            while not self._sampled.wait_done(step, lane, self._spin_us, SAMPLER_WAIT_US):
                self._context.line.beat()  # it is the sampler's turn
                self._context.read_orders()
                if self._context.should_exit or self._is_lost(lane):
                    return False
        return True

    def _is_lost(self, lane: int) -> bool:
        """The lane's sampler is gone, and others can do its rows before it is replaced."""
        self._spread_over_live_lanes()
        return bool(self._lanes.ready) and lane not in self._lanes.ready

    def _publish_again(self, step: int, records: RowRecords) -> int:
        """Hand the rows of samplers that died to others, as the next step; returns its number.

        Rows that were done before give the same token again: it is read back, not chosen anew.
        The old step is taken back before the lanes are looked at: whoever is found ready has its
        own rows in the new step, and whoever comes later finds nothing of the old one to repeat,
        so no row has two writers.
        """
        again = step + 1
        self._ring.begin(step)
        self._ring.begin(again)
        old, new = (self._logits[number % self._ring.depth] for number in (step, again))
        new[: len(records)] = old[: len(records)]
        self._spread_over_live_lanes()
        ready = self._lanes.ready
        is_gone = ~np.isin(records["lane"], ready)
        if ready and is_gone.any():
            records["lane"][is_gone] = np.resize(ready, is_gone.sum())
        logger.warning("step %d goes to samplers %s again as %d", step, ready, again)
        self._publish(again, records)
        return again

    def _spread_over_live_lanes(self) -> None:
        lanes = self._lanes.changed()
        if lanes is not None:
            self._batch.set_live_lanes(lanes)
