"""A decode step as servers usually make it: sampled with torch on the device, then waited for.

    python -m tools.bench_torch_loop [--models 13b 8b] [--batches 1 64] [--steps 64]

The same engine, graphs and rows as in ``tools.bench_step``, but the host launches torch's
temperature, top_p (by sorting) and multinomial behind each forward pass, reads the ids, and only
then enqueues the next one. Prints milliseconds per step, for the ratio to ``tools.bench_step``'s
line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
import torch

from hybridgen.formats.inspect import inspect_model
from hybridgen.models.cuda.engine import CudaEngine
from tools.bench_step import BLOCK_SIZE, CONFIGS, make_config, make_engine

TEMPERATURE, TOP_P = 0.7, 0.9
NUM_WARM_STEPS = 8


def main() -> int:
    """Measure and print."""
    options = _parse()
    for name in options.models:
        config = make_config(str(CONFIGS / f"llama-{name}.json"), max(options.batches))
        engine = make_engine(inspect_model(config.model.model, config), config, "triton")
        for batch in options.batches:
            step_ms = time_loop(engine, batch, 512 if batch == 1 else 1024, options.steps)
            print(f"{name} {batch:4} rows: {step_ms:8.3f} ms a step", flush=True)
        del engine
        torch.cuda.empty_cache()
    return 0


def time_loop(engine: CudaEngine, batch: int, context: int, num_steps: int) -> float:
    """Median milliseconds of a step."""
    _seat_rows(engine, batch, context, num_steps)
    results = engine._state.results
    times_ms = []
    for step in range(1, NUM_WARM_STEPS + num_steps + 1):
        started_s = time.perf_counter()
        with torch.cuda.stream(engine.stream):
            engine._decoder.replay(batch, step)
            logits = engine._decoder.logits(step)[:batch, : engine.vocab_size]
            ids = sample(logits)
            results[:batch, 0] = ids
            ids.tolist()
        times_ms.append((time.perf_counter() - started_s) * 1e3)
    return statistics.median(times_ms[NUM_WARM_STEPS:])


def sample(logits: torch.Tensor) -> torch.Tensor:
    """[n, vocab] → int32[n], as the field's libraries do it: sort, cumulative sum, draw."""
    ordered, order = torch.softmax(logits / TEMPERATURE, dim=-1).sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = ordered.masked_fill(before >= TOP_P, 0.0)
    choice = torch.multinomial(kept, 1)
    return order.gather(1, choice)[:, 0].to(torch.int32)


def _seat_rows(engine: CudaEngine, batch: int, context: int, num_steps: int) -> None:
    layout = engine._state.layout
    width = -(-(context + num_steps + 2 * NUM_WARM_STEPS) // BLOCK_SIZE)
    rows = np.arange(batch)
    tables = layout.tables + rows[:, None] * layout.width + np.arange(width)
    blocks = np.arange(batch * width, dtype=np.int32)
    indices = np.concatenate([rows, layout.origins + rows, tables.reshape(-1)])
    start = np.full(batch, context, np.int32)
    values = np.concatenate([start, rows.astype(np.int32), blocks])
    engine._state.reset()
    engine.apply(indices, values)
    torch.cuda.synchronize()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["13b", "8b"], choices=["13b", "8b"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--steps", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
