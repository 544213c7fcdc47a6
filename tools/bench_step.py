"""One decode step of a served batch on a CUDA device, CPU sampling in other processes included.

    python -m tools.bench_step [--models 13b 8b] [--batches 1 8 64] [--steps 64] [--layers triton]

Weights are random; rows are at a context of 512 (one row) or 1,024 tokens and sample with
temperature 0.7 and top_p 0.9 in real sampler processes. Per batch it prints: milliseconds per
step, that over the bytes which the step must read ÷ the read bandwidth measured in the same run,
the share of the time in which the device computes, and the hand-off from the last kernel of a step
to the first of the next, with the copy of the logits in it and the samplers' work per step.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hybridgen.config import Config, DeviceSection, ModelSection, PoolSection, SchedulerSection
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.models.cuda import load
from hybridgen.models.cuda.engine import CudaEngine
from hybridgen.models.cuda.layers import TorchLayers
from hybridgen.request import SamplingParams
from hybridgen.workers.device_ring import DeviceRing
from tools.bench_tree import BenchTree
from tools.device_clock import product_rate, read_bandwidth

CONFIGS = Path(__file__).parent / "configs"
PARAMS = SamplingParams(temperature=0.7, top_p=0.9, ignore_eos=True)
NUM_WARM_STEPS = 16
STAND_STILL_S = 15.0
MAX_MODEL_LEN = 8192
BLOCK_SIZE = 16


class TimedEngine(CudaEngine):
    """Marks begin and end of each forward pass, and the end of the copy behind it."""

    marks: list[list[Any]]
    is_timing = False

    def forward(self, num_rows: int) -> None:
        """Between two marks."""
        if not self.is_timing:
            super().forward(num_rows)
            return
        begin, end = self._mark(), self._mark()
        begin.record(self.stream)
        super().forward(num_rows)
        end.record(self.stream)
        self.marks.append([begin, end])

    def emit(self, step: int, num_decode: int, logits_slots: Sequence[int]) -> None:
        """Before a mark."""
        super().emit(step, num_decode, logits_slots)
        if self.is_timing and self.marks:
            copied = self._mark()
            copied.record(self.stream)
            self.marks[-1].append(copied)

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
    copy_ms: float
    hand_off_ms: float
    computing: float


def main() -> int:
    """Measure and print."""
    options = _parse()
    bandwidth = read_bandwidth()
    rate = product_rate()
    print(f"read bandwidth {bandwidth / 1e12:.2f} TB/s, torch {torch.__version__}", flush=True)
    for name in options.models:
        bench_model(name, options, bandwidth, rate)
    return 0


def bench_model(name: str, options: argparse.Namespace, bandwidth: float, rate: float) -> None:
    """All batches of one shape."""
    path = str(CONFIGS / f"llama-{name}.json")
    config = _config(path, max(options.batches), options)
    info = inspect_model(path, config)
    started_s = time.monotonic()
    engine = make_engine(info, config, options.layers)
    print(f"{name}: engine in {time.monotonic() - started_s:.1f} s, {engine.num_blocks} blocks")
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchTree(config, info.config.vocab_size, MAX_MODEL_LEN, Path(folder) / "run") as tree,
    ):
        ring = DeviceRing(tree.context, engine)
        ring.introduce()
        print(f"  hand-off by {ring.hand_off_name}, {config.pools.num_samplers} samplers")
        print("   rows  ctx |  ms/step  ×floor | forward  computing | hand-off copy  sampling µs")
        bench = BatchBench(tree, ring, engine, info)
        for batch in options.batches:
            bench.run(batch, options.steps, bandwidth)
        for num_tokens in options.prefill:
            bench_prefill(engine, info, num_tokens, rate)
        ring.close()
    del bench, ring, engine
    torch.cuda.empty_cache()


class BatchBench(NamedTuple):
    """What all batches of a shape share."""

    tree: BenchTree
    ring: DeviceRing
    engine: TimedEngine
    info: ModelInfo

    def run(self, batch: int, num_steps: int, bandwidth: float) -> None:
        """One line."""
        tree, engine = self.tree, self.engine
        context = 512 if batch == 1 else 1024
        # Rows that joined first run on while the others join.
        spare = num_steps + 3 * NUM_WARM_STEPS + 12 * batch
        width = -(-(context + spare) // BLOCK_SIZE)
        if batch * width > engine.num_blocks:
            print(f"  {batch:5} {context:4} | {batch * width} blocks do not fit")
            return
        for slot in range(batch):
            tree.fill(slot, PARAMS, context)
            tree.join(slot, context - 1, list(range(slot * width, (slot + 1) * width)))
        self._turn_until(batch, NUM_WARM_STEPS)
        last = batch - 1
        sampled_ns, first = tree.sampling_ns(), tree.num_generated(last)
        engine.begin_timing()
        started_s = time.monotonic()
        self._turn_until(batch, first + num_steps)
        elapsed_ms = (time.monotonic() - started_s) * 1e3
        num_done = tree.num_generated(last) - first
        sampling_us = (tree.sampling_ns() - sampled_ns) / 1e3 / num_done
        engine.is_timing = False
        self._retire(batch)
        figures = _figures(engine.marks[2:-2])
        num_bytes = step_bytes(self.info, batch, context + num_steps // 2)
        floor_ms = num_bytes / bandwidth * 1e3
        print(
            f"  {batch:5} {context:4} | {figures.step_ms:8.3f} {figures.step_ms / floor_ms:7.3f} "
            f"| {figures.forward_ms:7.3f}  {figures.computing:8.1%} "
            f"| {figures.hand_off_ms * 1e3:6.0f} {figures.copy_ms * 1e3:6.0f} {sampling_us:8.0f}"
            f"   (wall {elapsed_ms / num_done:.3f})",
            flush=True,
        )

    def _turn_until(self, batch: int, num_tokens: int) -> None:
        limit_s = time.monotonic() + STAND_STILL_S
        while min(self.tree.num_generated(slot) for slot in range(batch)) < num_tokens:
            self.ring.turn()
            if time.monotonic() > limit_s:
                raise SystemExit("the ring stands still")

    def _retire(self, batch: int) -> None:
        self.tree.retired.clear()
        for slot in range(batch):
            self.tree.retire(slot)
        limit_s = time.monotonic() + STAND_STILL_S
        while len(self.tree.retired) < batch and time.monotonic() < limit_s:
            self.ring.turn()
            self.tree.read_reports()


def bench_prefill(engine: TimedEngine, info: ModelInfo, num_tokens: int, rate: float) -> None:
    """One prompt by itself, in pieces, to its logits."""
    ids = np.arange(num_tokens, dtype=np.int32) % 512
    blocks = np.arange(-(-num_tokens // BLOCK_SIZE), dtype=np.int32)
    times_ms = []
    for _ in range(3):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        pieces = []
        for start in range(0, num_tokens, engine.max_chunk):
            stop = min(start + engine.max_chunk, num_tokens)
            while not engine.has_room():
                pieces = [piece for piece in pieces if not piece.is_done()]
            piece = engine.prefill(ids[start:stop], start, blocks, 0 if stop == num_tokens else -1)
            while piece.advance():
                pass
            pieces.append(piece)
        sent_s = time.perf_counter()
        torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - started_s) * 1e3)
        for piece in pieces:
            piece.is_done()
    config = info.config
    tables = config.vocab_size * config.hidden_size * (1 if config.is_embedding_tied else 2)
    flops = 2 * (config.num_parameters - tables) * num_tokens
    flops += 2 * config.num_layers * config.q_size * num_tokens**2  # causal: half of 4 · n²
    took_ms = statistics.median(times_ms)
    print(
        f"  prefill of {num_tokens}: {took_ms:.1f} ms, {flops / took_ms / 1e9:.0f} TFLOP/s, "
        f"{flops / took_ms * 1e3 / rate:.2f} of a large product's {rate / 1e12:.0f} "
        f"(enqueued in {(sent_s - started_s) * 1e3:.1f} ms)",
        flush=True,
    )


def make_engine(info: ModelInfo, config: Config, layers: str) -> TimedEngine:
    """As ``load_cuda_engine`` does, with marks."""
    load.CudaEngine = TimedEngine  # type: ignore[misc]
    if layers == "torch":
        load.TritonLayers = lambda shape, rope, *_: TorchLayers(  # type: ignore[assignment,misc]
            shape.num_heads, rope
        )
    engine = load.load_cuda_engine(info, config, lambda _share, _what: None)
    assert isinstance(engine, TimedEngine)
    for cache in engine.caches:
        for pages in cache:
            pages.normal_()
    return engine


def step_bytes(info: ModelInfo, batch: int, context: int) -> int:
    """What a decode step must read: all weights but the embedding, and every row's KV."""
    config = info.config
    table = 0 if config.is_embedding_tied else config.vocab_size * config.hidden_size
    weights = 2 * (config.num_parameters - table)
    return weights + batch * context * config.kv_bytes_per_token(2)


def _config(path: str, max_rows: int, options: argparse.Namespace) -> Config:
    return Config(
        model=ModelSection(
            model=path, load_format="dummy", dtype="bfloat16", max_model_len=MAX_MODEL_LEN
        ),
        device=DeviceSection(device="cuda", hand_off=options.hand_off, gpu_memory=0.95),
        scheduler=SchedulerSection(max_num_seqs=max_rows),
        pools=PoolSection(num_samplers=options.samplers, spin_us=50),
    )


def _figures(marks: list[list[Any]]) -> StepFigures:
    torch.cuda.synchronize()
    forward = [begin.elapsed_time(end) for begin, end, _ in marks]
    copies = [end.elapsed_time(copied) for _, end, copied in marks]
    pairs = list(itertools.pairwise(marks))
    hand_offs = [before[1].elapsed_time(after[0]) for before, after in pairs]
    steps = [before[0].elapsed_time(after[0]) for before, after in pairs]
    return StepFigures(
        statistics.median(steps),
        statistics.median(forward),
        statistics.median(copies),
        statistics.median(hand_offs),
        sum(forward[:-1]) / sum(steps),
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["13b", "8b"], choices=["13b", "8b"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=64, help="measured, per batch")
    parser.add_argument("--prefill", nargs="*", type=int, default=[2048, 8000])
    parser.add_argument("--samplers", type=int, default=8)
    parser.add_argument("--layers", default="triton", choices=["triton", "torch"])
    parser.add_argument("--hand-off", default="auto", choices=["auto", "stream", "host"])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
