"""Decode and prefill speed of the CPU engine, beside transformers on the same weights.

Usage: python -m tools.bench_model [--model demo] [--dtypes bfloat16 float32]
       [--batches 1 4 16 64] [--steps 12] [--no-transformers] [--json]

Every figure is the median of the steps after one warm-up step. "GB/s" is weight bytes over step
time; "of read" is its share of this machine's read bandwidth, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from hybridgen.config import Config, DeviceSection, ModelSection, SchedulerSection
from hybridgen.formats.convert import load_weights, prepare_weights
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.models.config import ModelConfig
from hybridgen.models.engine import Engine
from hybridgen.models.registry import load_engine
from tools.llama_peer import llama_peer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BLOCK_SIZE = 16


class Figure(NamedTuple):
    """One line of the result."""

    dtype: str
    what: str
    engine: str
    tokens_per_s: float
    step_ms: float
    gigabytes_per_s: float


def main() -> int:
    """Measure and print."""
    options = _parse()
    bandwidth = read_bandwidth()
    figures = []
    for dtype in options.dtypes:
        for figure in measure(options, dtype):
            figures.append(figure)
            if not options.json:
                _print(figure, bandwidth)
    if options.json:
        print(json.dumps({"read_gb_s": bandwidth, "figures": [f._asdict() for f in figures]}))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=DTYPES)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--context", type=int, default=64, help="tokens before the first step")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prefill")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(options: argparse.Namespace, dtype: str) -> Iterator[Figure]:
    """All figures of one dtype, ours first."""
    config = Config(
        model=ModelSection(model=options.model, dtype=dtype),
        device=DeviceSection(
            num_compute_threads=options.threads,
            num_kv_blocks=_blocks_each(options) * max([*options.batches, 1]),
        ),
        scheduler=SchedulerSection(
            max_num_seqs=max(options.batches), prefill_chunk=max(16, min(options.prompt, 512))
        ),
    )
    info = inspect_model(options.model, config)
    weight_bytes = info.config.num_parameters * DTYPES[dtype].itemsize
    start = time.perf_counter()
    engine = load_engine(info, config, lambda *_: None)
    print(f"{dtype}: loaded in {time.perf_counter() - start:.2f} s", file=sys.stderr)
    runs = [("hybridgen", EngineRun(engine, info.config, options))]
    for name, run in runs:
        yield from _figures(name, run, options, dtype, weight_bytes)
    engine.close()
    del engine, runs
    if not options.no_transformers:
        peer = TransformersRun(info, config, dtype, options)
        yield from _figures("transformers", peer, options, dtype, weight_bytes)


def _figures(
    name: str, run: Any, options: argparse.Namespace, dtype: str, weight_bytes: int
) -> Iterator[Figure]:
    for batch in options.batches:
        seconds = run.decode_s(batch)
        yield Figure(
            dtype,
            f"decode {batch}",
            name,
            batch / seconds,
            seconds * 1e3,
            weight_bytes / seconds / 1e9,
        )
    seconds = run.prefill_s()
    yield Figure(
        dtype, f"prefill {options.prompt}", name, options.prompt / seconds, seconds * 1e3, 0.0
    )


class EngineRun:
    """Our engine, called as the gpu process calls it."""

    def __init__(self, engine: Engine, config: ModelConfig, options: argparse.Namespace) -> None:
        self._engine = engine
        self._options = options
        self._ids = _random_ids(config, max(options.context, options.prompt))

    def decode_s(self, batch: int) -> float:
        """Median time of a decode step."""
        engine, context = self._engine, self._options.context
        tables = np.arange(batch * _blocks_each(self._options), dtype=np.int32).reshape(batch, -1)
        for table in tables:
            engine.prefill(self._ids[:context], 0, table, None)
        ids = self._ids[:1].repeat(batch)
        positions = np.full(batch, context, np.int32)
        logits = np.empty((batch, engine.vocab_size), np.float32)

        def step() -> None:
            engine.decode(ids, positions, tables, logits)
            positions[:] += 1

        return _median_s(step, self._options.steps)

    def prefill_s(self) -> float:
        """Median time of one prompt."""
        blocks = np.arange(_blocks_each(self._options), dtype=np.int32)
        logits = np.empty(self._engine.vocab_size, np.float32)
        ids = self._ids[: self._options.prompt]
        return _median_s(lambda: self._engine.prefill(ids, 0, blocks, logits), 5)


class TransformersRun:
    """The same weights in transformers, with its own KV cache."""

    def __init__(
        self, info: ModelInfo, config: Config, dtype: str, options: argparse.Namespace
    ) -> None:
        from transformers.utils import logging

        logging.set_verbosity_error()
        warnings.simplefilter("ignore", FutureWarning)  # names of arguments of later releases
        path = prepare_weights(info, dtype, config.model.cache_dir)  # type: ignore[arg-type]
        model = llama_peer(info.config, load_weights(path), DTYPES[dtype])
        if options.threads:
            torch.set_num_threads(options.threads)
        self._model = model
        self._options = options
        self._ids = torch.from_numpy(
            _random_ids(info.config, max(options.context, options.prompt))
        ).long()

    @torch.inference_mode()
    def decode_s(self, batch: int) -> float:
        """Median time of a decode step."""
        prompt = self._ids[: self._options.context].expand(batch, -1)
        cache = self._model(prompt, use_cache=True, logits_to_keep=1).past_key_values
        ids = self._ids[:1].expand(batch, 1)
        return _median_s(
            lambda: self._model(ids, past_key_values=cache, use_cache=True), self._options.steps
        )

    @torch.inference_mode()
    def prefill_s(self) -> float:
        """Median time of one prompt."""
        ids = self._ids[None, : self._options.prompt]
        return _median_s(lambda: self._model(ids, use_cache=True, logits_to_keep=1), 5)


def read_bandwidth() -> float:
    """GB/s of summing 1 GiB, more than any cache here holds; the best of five."""
    data = torch.ones(2**28)
    return data.nbytes / min(_times_s(data.sum, 5)) / 1e9


def _median_s(step: Callable[[], object], num_steps: int) -> float:
    step()
    return statistics.median(_times_s(step, num_steps))


def _times_s(step: Callable[[], object], num_steps: int) -> list[float]:
    times = []
    for _ in range(num_steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def _blocks_each(options: argparse.Namespace) -> int:
    return -(-max(options.context + options.steps + 2, options.prompt) // BLOCK_SIZE)


def _random_ids(config: ModelConfig, num_tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(0).integers(0, config.vocab_size, num_tokens, dtype=np.int32)


def _print(figure: Figure, bandwidth: float) -> None:
    share = f"{figure.gigabytes_per_s:6.1f} GB/s of {bandwidth:.1f} read"
    print(
        f"{figure.dtype:9} {figure.what:12} {figure.engine:13}"
        f"{figure.tokens_per_s:9.0f} tok/s {figure.step_ms:9.2f} ms"
        f"  {share if figure.gigabytes_per_s else ''}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
