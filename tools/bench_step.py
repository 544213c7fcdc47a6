"""One decode step of a served batch on a CUDA device, CPU sampling in other processes included.

    python -m tools.bench_step [--models 13b 8b] [--batches 1 8 64] [--steps 64] [--layers triton]
                               [--quantize-weights 8] [--temperature 0.7] [--top-p 0.9]

Weights are random; rows are at a context of 512 (one row) or 1,024 tokens and sample in real
sampler processes. Per batch it prints: milliseconds per
step, that over the bytes which the step must read ÷ the read bandwidth measured before and after,
the share of the time in which the device computes, and the hand-off from the last kernel of a step
to the first of the next (median and longest), with the cuts of the logits in it and the samplers'
work per step.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from hybridgen.config import Config, DeviceSection, ModelSection, PoolSection, SchedulerSection
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.models.cuda import load
from hybridgen.models.cuda.engine import CudaEngine
from hybridgen.models.cuda.layers import TorchLayers
from hybridgen.models.cuda.prefill import PrefillPiece
from hybridgen.models.device_engine import Output, PromptChunk
from hybridgen.request import SamplingParams
from hybridgen.workers.device_ring import DeviceRing
from tools.bench_tree import BenchTree
from tools.device_clock import ReadMeter, product_rate
from tools.step_bytes import num_expert_weights, step_bytes

CONFIGS = Path(__file__).parent / "configs"
#: Name → file there.
MODELS = {
    "13b": "llama-13b",
    "8b": "llama-8b",
    "8x7b": "mixtral-8x7b",
    "30b-a3b": "qwen3-30b-a3b",
}
NUM_WARM_STEPS = 16
_METER_BYTES = 4 << 30
STAND_STILL_S = 8.0
#: Tokens by which the first of many rows may lead the last.
MAX_LEAD = 2048
MAX_MODEL_LEN = 8192
BLOCK_SIZE = 16


class TimedEngine(CudaEngine):
    """Marks the start and end of each forward pass, and the end of the cuts behind it."""

    marks: list[list[Any]]
    is_timing = False

    def forward(self, num_rows: int, step: int, answered: int) -> None:
        """Between two marks."""
        if not self.is_timing:
            super().forward(num_rows, step, answered)
            return
        begin, end = self._mark(), self._mark()
        begin.record(self.stream)
        super().forward(num_rows, step, answered)
        end.record(self.stream)
        self.marks.append([begin, end])

    def emit(self, step: int, num_decode: int, logits_slots: Sequence[int], output: Output) -> None:
        """Before a mark."""
        super().emit(step, num_decode, logits_slots, output)
        if self.is_timing and self.marks:
            cut = self._mark()
            cut.record(self.stream)
            self.marks[-1].append(cut)

    def begin_timing(self) -> None:
        """From the next step on."""
        self.marks = []
        self.is_timing = True

    def _mark(self) -> Any:
        make: Any = torch.cuda.Event
        return make(enable_timing=True)


class StepFigures(NamedTuple):
    """Milliseconds, but for the share."""

    step_ms: float
    forward_ms: float
    cut_ms: float
    hand_off_ms: float
    longest_ms: float
    computing: float


def main() -> int:
    """Measure and print."""
    options = _parse()
    logging.basicConfig(level=logging.INFO, format="  %(message)s", stream=sys.stdout)
    meter = ReadMeter(_METER_BYTES)
    rate = product_rate()
    print(f"product {rate / 1e12:.0f} TFLOP/s, torch {torch.__version__}", flush=True)
    for name in options.models:
        bench_model(name, options, meter, rate)
    return 0


def bench_model(name: str, options: argparse.Namespace, meter: ReadMeter, rate: float) -> None:
    """All batches of one shape."""
    path = str(CONFIGS / f"{MODELS[name]}.json")
    config = make_config(
        path,
        max(options.batches),
        hand_off=options.hand_off,
        sample_on_gpu=options.sample_on_gpu,
        quantize_weights=options.quantize_weights,
        num_samplers=options.samplers,
    )
    info = inspect_model(path, config)
    started_s = time.monotonic()
    engine = make_engine(info, config, options.layers)
    print(
        f"{name}, {options.quantize_weights} bit: engine in {time.monotonic() - started_s:.1f} s, "
        f"{engine.num_blocks} blocks"
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchTree(config, info.config.vocab_size, MAX_MODEL_LEN, Path(folder) / "run") as tree,
    ):
        ring = DeviceRing(tree.context, engine)
        ring.introduce()
        tree.await_ring()
        print(f"  hand-off by {ring.hand_off_name}, {config.pools.num_samplers} samplers")
        print("   rows  ctx |  ms/step  ×floor | forward  computing |", end="")
        print(" hand-off longest  cut  sampling µs")
        params = SamplingParams(
            temperature=options.temperature, top_p=options.top_p, ignore_eos=True
        )
        bench = BatchBench(tree, ring, engine, info, options.quantize_weights == 8, meter, params)
        for batch in options.batches:
            bench.run(batch, options.steps)
        for num_tokens in options.prefill:
            bench_prefill(engine, info, num_tokens, rate)
        for num_tokens in options.packed:
            bench_prefill(engine, info, num_tokens, rate, 8 * engine.max_chunk // num_tokens)
        ring.close()
    del bench, ring, engine
    gc.collect()  # graphs and what they hold refer to each other
    torch.cuda.empty_cache()


class BatchBench(NamedTuple):
    """What all batches of a shape share."""

    tree: BenchTree
    ring: DeviceRing
    engine: TimedEngine
    info: ModelInfo
    is_int8: bool
    meter: ReadMeter
    params: SamplingParams

    def run(self, batch: int, num_steps: int) -> None:
        """One line; the bandwidth of its floor is the mean of before and after."""
        tree, engine = self.tree, self.engine
        context = 512 if batch == 1 else 1024
        # Rows that joined first run on while the others join.
        spare = num_steps + 3 * NUM_WARM_STEPS + min(12 * batch, MAX_LEAD)
        width = -(-(context + spare) // BLOCK_SIZE)
        if batch * width > engine.num_blocks:
            print(f"  {batch:5} {context:4} | {batch * width} blocks do not fit")
            return
        bandwidth = self.meter.bandwidth()
        for slot in range(batch):
            tree.fill(slot, self.params, context)
            tree.join(slot, context - 1, list(range(slot * width, (slot + 1) * width)))
        self._turn_until(batch, NUM_WARM_STEPS)
        last = batch - 1
        sampled_ns, first = tree.sampling_ns(), tree.num_generated(last)
        engine.begin_timing()
        started_s = time.monotonic()
        self._turn_until(batch, first + num_steps)
        elapsed_ms = (time.monotonic() - started_s) * 1e3
        num_done = tree.num_generated(last) - first
        reached = context + statistics.fmean(tree.num_generated(slot) for slot in range(batch))
        sampling_us = (tree.sampling_ns() - sampled_ns) / 1e3 / num_done
        engine.is_timing = False
        self._retire(batch)
        figures = _figures(engine.marks[2:-2])
        num_bytes = step_bytes(self.info, batch, int(reached) - num_done // 2, is_int8=self.is_int8)
        bandwidth = (bandwidth + self.meter.bandwidth()) / 2
        floor_ms = num_bytes / bandwidth * 1e3
        print(
            f"  {batch:5} {context:4} | {figures.step_ms:8.3f} {figures.step_ms / floor_ms:7.3f} "
            f"| {figures.forward_ms:7.3f}  {figures.computing:8.1%} "
            f"| {figures.hand_off_ms * 1e3:6.0f} {figures.longest_ms * 1e3:8.0f} "
            f"{figures.cut_ms * 1e3:6.0f} {sampling_us:8.0f}"
            f"   (wall {elapsed_ms / num_done:.3f}, read {bandwidth / 1e12:.2f} TB/s)",
            flush=True,
        )

    def _turn_until(self, batch: int, num_tokens: int) -> None:
        limit_s = time.monotonic() + STAND_STILL_S
        while min(self.tree.num_generated(slot) for slot in range(batch)) < num_tokens:
            self.ring.turn()
            if time.monotonic() > limit_s:
                raise SystemExit(f"the ring stands still: {self._describe()}")

    def _describe(self) -> str:
        """What the newest steps look like in shared memory."""
        tree, logits = self.tree, LogitRing(self.tree.context.segment("logits").buf)
        sampled = SampledRing(tree.context.segment("sampled").buf)
        steps = []
        for step in range(max(1, logits.announced - 2), logits.announced + 1):
            start = logits.cut_offset_of(step)
            words = np.frombuffer(logits.buf, np.int32, 16, start).tolist()
            whole = logits.is_whole(step)
            done = [sampled.done(step, lane) for lane in range(sampled.num_lanes)]
            rows = logits.rows(step)[:2]
            steps.append(f"step {step}: whole {whole}, done {done}, cut {words}, rows {rows}")
        finish = tree.slots.load(0, SlotWord.FINISH)
        return "\n".join(
            [
                f"latest {logits.latest}, announced {logits.announced}, slot 0 finish {finish:x}, "
                f"device quiet {self.engine.is_quiet()}",
                *steps,
            ]
        )

    def _retire(self, batch: int) -> None:
        self.tree.retired.clear()
        for slot in range(batch):
            self.tree.retire(slot)
        limit_s = time.monotonic() + STAND_STILL_S
        while len(self.tree.retired) < batch and time.monotonic() < limit_s:
            self.ring.turn()
            self.tree.read_reports()


def bench_prefill(
    engine: TimedEngine, info: ModelInfo, num_tokens: int, rate: float, num_prompts: int = 1
) -> None:
    """Prompts of so many tokens each, in pieces, to their logits; the median of three times."""
    times_ms, sent_ms, device_ms = [], [], 0.0
    for _ in range(3):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        runs: list[PrefillPiece] = []
        for piece in prompt_pieces(num_prompts, num_tokens, engine.max_chunk):
            while not engine.has_room():
                runs = [run for run in runs if not run.is_done()]
            began_s = time.perf_counter()
            runs.append(engine.prefill(piece))
            while runs[-1].advance(4):
                pass
            sent_ms.append((time.perf_counter() - began_s) * 1e3)
        torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - started_s) * 1e3)
        device_ms = runs[-1].device_ms()
        for run in runs:
            run.is_done()
    config = info.config
    tables = config.vocab_size * config.hidden_size * (1 if config.is_embedding_tied else 2)
    num_active = config.num_parameters - tables
    if config.experts is not None:
        share = config.experts.num_chosen / config.experts.num_experts
        num_active -= int((1 - share) * num_expert_weights(config))
    flops = 2 * num_active * num_tokens
    flops += 2 * config.num_layers * config.q_size * num_tokens**2  # causal: half of 4 · n²
    flops *= num_prompts
    took_ms = statistics.median(times_ms)
    print(
        f"  prefill of {num_prompts} × {num_tokens}: {took_ms:.1f} ms, "
        f"{num_prompts * num_tokens / took_ms:.1f} tokens/ms, {flops / took_ms / 1e9:.0f} TFLOP/s, "
        f"{flops / took_ms * 1e3 / rate:.2f} of a large product's {rate / 1e12:.0f} "
        f"(a piece is enqueued in {statistics.median(sent_ms):.2f} ms, "
        f"the last one took {device_ms:.1f} ms)",
        flush=True,
    )


def prompt_pieces(num_prompts: int, num_tokens: int, max_chunk: int) -> list[list[PromptChunk]]:
    """As the batch packs prompts of equal length, each in blocks of its own."""
    width = -(-num_tokens // BLOCK_SIZE)
    per_piece = max(1, max_chunk // num_tokens)
    pieces = []
    for first in range(0, num_prompts, per_piece):
        for start in range(0, num_tokens, max_chunk):
            stop = min(start + max_chunk, num_tokens)
            piece = []
            for number in range(first, min(first + per_piece, num_prompts)):
                blocks = np.arange(number * width, (number + 1) * width, dtype=np.int32)
                slot = number - first if stop == num_tokens else -1
                ids = np.arange(start, stop, dtype=np.int32) % 512
                piece.append(PromptChunk(ids, start, blocks, slot))
            pieces.append(piece)
    return pieces


def make_engine(info: ModelInfo, config: Config, layers: str) -> TimedEngine:
    """As ``load_cuda_engine`` does, with marks."""
    load.CudaEngine = TimedEngine  # type: ignore[misc]
    if layers == "torch":
        load.TritonLayers = lambda model, ropes, *_, **__: TorchLayers(  # type: ignore[assignment,misc]
            model, ropes
        )
    engine = load.load_cuda_engine(info, config, lambda _share, _what: None)
    assert isinstance(engine, TimedEngine)
    for cache in engine.caches:
        for pages in cache:
            pages.normal_()
    return engine


def make_config(
    path: str,
    max_rows: int,
    *,
    hand_off: Literal["auto", "stream", "host"] = "auto",
    sample_on_gpu: Literal["auto", "true", "false"] = "false",
    quantize_weights: Literal[16, 8] = 16,
    num_samplers: int = 8,
) -> Config:
    """A model of random weights on the device."""
    return Config(
        model=ModelSection(
            model=path, load_format="dummy", dtype="bfloat16", max_model_len=MAX_MODEL_LEN
        ),
        device=DeviceSection(
            device="cuda",
            hand_off=hand_off,
            sample_on_gpu=sample_on_gpu,
            quantize_weights=quantize_weights,
            gpu_memory=0.95,
        ),
        scheduler=SchedulerSection(max_num_seqs=max_rows),
        pools=PoolSection(num_samplers=num_samplers, spin_us=50),
    )


def _figures(marks: list[list[Any]]) -> StepFigures:
    torch.cuda.synchronize()
    forward = [begin.elapsed_time(end) for begin, end, _ in marks]
    cuts = [end.elapsed_time(cut) for _, end, cut in marks]
    pairs = list(itertools.pairwise(marks))
    hand_offs = [before[1].elapsed_time(after[0]) for before, after in pairs]
    steps = [before[0].elapsed_time(after[0]) for before, after in pairs]
    return StepFigures(
        statistics.median(steps),
        statistics.median(forward),
        statistics.median(cuts),
        statistics.median(hand_offs),
        max(hand_offs),
        sum(forward[:-1]) / sum(steps),
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["13b", "8b"], choices=MODELS)
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=64, help="measured, per batch")
    parser.add_argument("--prefill", nargs="*", type=int, default=[2048, 8000])
    parser.add_argument("--packed", nargs="*", type=int, default=[512], help="many at once")
    parser.add_argument("--samplers", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--layers", default="triton", choices=["triton", "torch"])
    parser.add_argument("--quantize-weights", type=int, default=16, choices=[16, 8])
    parser.add_argument("--hand-off", default="auto", choices=["auto", "stream", "host"])
    parser.add_argument("--sample-on-gpu", default="false", choices=["false", "true", "auto"])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
