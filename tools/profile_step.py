"""What each kernel adds to a decode step on a CUDA device, from torch's profiler.

    python -m tools.profile_step [--models 13b 8b] [--batches 1 8 64] [--context 1024]

The engine is that of ``tools.bench_step``, with random weights and no samplers: the step from the
embedding to the logits. "added" is the time from the end of all kernels before to a kernel's own
end, so that the column sums up to the step; "floor" is bytes ÷ read bandwidth.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from hybridgen.formats.inspect import inspect_model
from hybridgen.models.cuda import load
from hybridgen.models.cuda.engine import CudaEngine
from tools.bench_step import CONFIGS, make_config
from tools.device_clock import read_bandwidth
from tools.kernel_timeline import Addition, additions, cut_steps, read_kernels
from tools.model_shapes import MODELS, ModelShape, weight_bytes

NUM_STEPS = 6


class Case(NamedTuple):
    """What is profiled."""

    model: ModelShape
    batch: int
    bits: int
    context: int


def main() -> int:
    """Profile and print."""
    options = _parse()
    bandwidth = read_bandwidth()
    print(f"read bandwidth {bandwidth / 1e12:.2f} TB/s, torch {torch.__version__}", flush=True)
    for name in options.models:
        path = str(CONFIGS / f"llama-{name}.json")
        bits = options.quantize_weights
        config = make_config(path, max(options.batches), quantize_weights=bits)
        started_s = time.monotonic()
        info = inspect_model(path, config)
        engine = load.load_cuda_engine(info, config, lambda _share, _what: None)
        print(f"{name}, {bits} bit: engine in {time.monotonic() - started_s:.1f} s", flush=True)
        for batch in options.batches:
            profile(engine, Case(MODELS[name], batch, bits, options.context), bandwidth)
        del engine
        torch.cuda.empty_cache()
    return 0


def profile(engine: CudaEngine, case: Case, bandwidth: float) -> None:
    """One table."""
    model, batch, _, context = case
    if not fill(engine, batch, context):
        print(f"  batch {batch}: too few KV blocks for a context of {context}", flush=True)
        return
    run(engine, batch, 2)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(engine.stream)
    run(engine, batch, NUM_STEPS)
    end.record(engine.stream)
    torch.cuda.synchronize()
    plain_us = begin.elapsed_time(end) * 1e3 / NUM_STEPS
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run(engine, batch, NUM_STEPS)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        steps = cut_steps(read_kernels(json.loads(path.read_text(encoding="utf-8"))))
    floors = floors_us(case, bandwidth)
    table = additions(steps, model.num_layers)
    floor_us = sum(floors[place] * times(model, place) for place in floors)
    print(
        f"  batch {batch}, context {context}: {plain_us:.0f} us a step, x{plain_us / floor_us:.3f} "
        f"of {floor_us:.0f}; profiled {sum(entry.added_us for entry in table):.0f}, "
        f"gaps {sum(entry.gap_us for entry in table):.0f}"
    )
    print("    place      count | added us   each  floor     x   lost us | lasts   gaps | kernel")
    for entry in table:
        print(line(entry, floors.get(entry.place)), flush=True)


def fill(engine: CudaEngine, batch: int, context: int) -> bool:
    """Set ``batch`` rows to a context with blocks of their own, the others idle."""
    state = engine._state  # no ring is connected that would fill it
    width = -(-(context + 4 * NUM_STEPS) // engine.block_size)
    if batch * width > engine.num_blocks:
        return False
    state.reset()
    state.positions[:batch] = context
    order = torch.randperm(engine.num_blocks, device=state.tables.device)[: batch * width]
    state.tables[:batch, :width] = order.view(batch, width).int()
    torch.cuda.synchronize()
    return True


def run(engine: CudaEngine, batch: int, num_steps: int) -> None:
    """Enqueue steps."""
    with torch.cuda.stream(engine.stream):
        for step in range(num_steps):
            engine._decoder.replay(batch, step)  # as ``forward``, without a ring


def floors_us(case: Case, bandwidth: float) -> dict[str, float]:
    """Place → microseconds that its bytes take, each time."""
    model, batch, bits, context = case
    num_bytes = {name: weight_bytes(shape) for name, shape in model.products(bits).items()}
    num_bytes["attention"] = 4 * batch * context * model.num_kv_heads * model.head_dim
    return {place: size / bandwidth * 1e6 for place, size in num_bytes.items()}


def times(model: ModelShape, place: str) -> int:
    """How often a step comes by."""
    return model.num_layers if place == "attention" else model.times(place)


def line(entry: Addition, floor_us: float | None) -> str:
    """One row of the table."""
    each_us = entry.added_us / entry.count
    floor, ratio, lost = "", "", f"{entry.added_us:.0f}"
    if floor_us is not None:
        floor, ratio = f"{floor_us:.1f}", f"{each_us / floor_us:.2f}"
        lost = f"{entry.added_us - floor_us * entry.count:.0f}"
    return (
        f"    {entry.place:10} {entry.count:5} | {entry.added_us:8.0f} {each_us:6.1f} {floor:>6} "
        f"{ratio:>5} {lost:>9} | {entry.duration_us:5.1f} {entry.gap_us:6.0f} | {entry.name[:60]}"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["13b", "8b"], choices=["13b", "8b"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--quantize-weights", type=int, default=16, choices=[16, 8])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
