"""Measures which kernel with which blocks makes each matrix product fastest, and stores it.

Usage: python -m tools.tune_kernels [--models 13b 8b] [--bits 16 8] [--batches 1 2 4 8 16 32 64]
       [--limit-s 300] [--output hybridgen/models/kernels/linear_choices.json]

Needs a CUDA device. Kernels are compiled by several processes first, then timed one after the
other: launches chained in a CUDA graph, on weights that do not fit the L2 cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from hybridgen.models.kernels.linear import (
    LinearWeights,
    linear,
    linear_needs,
    scratch_needs,
)
from hybridgen.models.kernels.linear_choice import TABLE_PATH, LinearChoice, LinearShape
from hybridgen.models.kernels.workspace import Workspace
from tools.device_clock import time_graph
from tools.model_shapes import MODELS, weight_bytes, weight_rows

_MAX_SHARED_BYTES = 225_000
_NUM_COMPILERS = 14
_NUM_PROCESSORS = 132
_L2_BYTES = 60 << 20


class Trial(NamedTuple):
    """One product with one choice, and what it took."""

    shape: LinearShape
    num_tokens: int
    choice: LinearChoice
    microseconds: float


def main() -> int:
    """Compile, measure, store."""
    options = _parse()
    tasks = [
        (shape, batch)
        for model, bits in itertools.product(options.models, options.bits)
        for shape in MODELS[model].products(bits).values()
        for batch in options.batches
    ]
    if options.compile is not None:
        compile_share(tasks, *options.compile)
        return 0
    begin_s = time.monotonic()
    _compile_all(options)
    print(f"compiled in {time.monotonic() - begin_s:.0f} s", flush=True)
    bench = Bench()
    best: list[Trial] = []
    tasks.sort(key=lambda task: options.batches.index(task[1]))
    for shape, batch in tasks:
        if time.monotonic() - begin_s > options.limit_s:
            print(f"out of time before {shape} x {batch}", flush=True)
            break
        best.append(bench.search(shape, batch))
        _store(best, options.output)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--bits", nargs="+", type=int, default=[16, 8])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--output", type=Path, default=TABLE_PATH)
    parser.add_argument("--compile", nargs=2, type=int, help="share and shares (internal)")
    return parser.parse_args()


def candidates(shape: LinearShape, batch: int) -> Iterator[LinearChoice]:
    """Choices worth a try, from what has been seen to do well."""
    if batch == 1:
        yield from _gemv_candidates(shape)
        return
    block_b = max(16, 1 << (batch - 1).bit_length())
    for block_n, block_k, warps, stages in itertools.product(
        (32, 64, 128), (64, 128, 256), (4, 8), (3, 4, 6)
    ):
        tile = block_n * (2 if shape.is_gated else 1)
        shared = stages * block_k * (tile * shape.weight_bits // 8 + block_b * 2)
        if (
            shape.size % block_k == 0
            and 60_000 <= shared <= _MAX_SHARED_BYTES
            and 8192 <= tile * block_k <= 16384
            and warps <= max(4, tile // 16)
            and tile >= min(2 * block_b, 128)
        ):
            for splits in _useful_splits(shape, block_n, block_k, _MAX_SHARED_BYTES // shared):
                yield LinearChoice("dot", block_n, block_k, block_b, splits, warps, stages)


def _useful_splits(shape: LinearShape, block_n: int, block_k: int, per_processor: int) -> list[int]:
    """Few splits that fill the device; more make only more partial sums."""
    tiles = -(-shape.num_rows // block_n)
    useful = [
        splits
        for splits in (1, 2, 3, 4, 6)
        if tiles * splits >= 0.8 * _NUM_PROCESSORS * per_processor
        and shape.size // block_k >= 4 * splits
    ]
    return useful[:2]


def _gemv_candidates(shape: LinearShape) -> Iterator[LinearChoice]:
    for block_n, block_k, warps, (stages, unroll) in itertools.product(
        (1, 2, 4, 8, 16), (512, 1024, 2048), (4, 8), ((1, 1), (3, 1))
    ):
        per_thread = block_n * (2 if shape.is_gated else 1) * block_k // (warps * 32)
        if 8 * 16 // shape.weight_bits <= per_thread <= 64 and per_thread * unroll <= 160:
            for fuses_norm in (False, True) if has_norm(shape) else (False,):
                yield LinearChoice(
                    "gemv", block_n, block_k, num_warps=warps, num_stages=stages, unroll=unroll,
                    fuses_norm=fuses_norm,
                )  # fmt: skip


def compile_share(tasks: list[tuple[LinearShape, int]], share: int, num_shares: int) -> None:
    """Compile every ``num_shares``-th kernel into Triton's cache by running it on few rows."""
    bench = Bench(1 << 28)
    wanted: dict[object, tuple[LinearShape, int, LinearChoice]] = {}
    for shape, batch in tasks:
        for choice in candidates(shape, batch):
            same = LinearShape(int(has_norm(shape)), 0, shape.is_gated, shape.weight_bits)
            key = (shape if choice.form == "gemv" else same, choice)
            wanted.setdefault(key, (shape, batch, choice))
    for number, (shape, batch, choice) in enumerate(wanted.values()):
        if number % num_shares == share and weight_bytes(shape) <= bench.num_bytes:
            try:
                bench.launch(shape, batch, choice)(0)
            except Exception as error:  # noqa: BLE001 - a choice that does not compile is no choice
                print(f"{choice}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    torch.cuda.synchronize()


def has_norm(shape: LinearShape) -> bool:
    """Products that widen follow a norm in these models; the others add to the residual."""
    return shape.num_rows > shape.size


def make_weights(shape: LinearShape, pool: torch.Tensor, start: int = 0) -> LinearWeights:
    """Weights of a shape out of a pool of random bytes (bf16 numbers, or int8)."""
    num_bytes = weight_bytes(shape)
    dtype = torch.int8 if shape.weight_bits == 8 else torch.bfloat16
    matrix = pool[start : start + num_bytes].view(dtype).view(weight_rows(shape), shape.size)
    scales = None
    if shape.weight_bits == 8:
        scales = torch.full((len(matrix),), 0.01, device=pool.device)
    return LinearWeights(matrix, scales=scales, is_gated=shape.is_gated)


def _compile_all(options: argparse.Namespace) -> None:
    arguments = [
        "--models", *options.models, "--bits", *map(str, options.bits),
        "--batches", *map(str, options.batches),
    ]  # fmt: skip
    command = [sys.executable, "-m", "tools.tune_kernels", *arguments, "--compile"]
    children = [
        subprocess.Popen([*command, str(share), str(_NUM_COMPILERS)])
        for share in range(_NUM_COMPILERS)
    ]
    for child in children:
        child.wait()


class Bench:
    """Random weights on the device, and the times of choices on them."""

    def __init__(self, num_numbers: int = 3 << 28) -> None:
        numbers = torch.randn(num_numbers, dtype=torch.bfloat16, device="cuda")
        self._pool = numbers.view(torch.uint8)
        self.num_bytes = len(self._pool)

    def search(self, shape: LinearShape, batch: int) -> Trial:
        """The fastest choice, checked against torch."""
        trials = self._time_all(shape, batch)
        best = next(trial for trial in trials if self.error(trial) < 0.01)
        library_us = self.time_library(shape, batch) if shape.weight_bits == 16 else 0.0
        bandwidth = weight_bytes(shape) / best.microseconds / 1e6
        print(
            f"{batch:3} x {weight_rows(shape):6} x {shape.size:5} {shape.weight_bits:2} bit "
            f"{'gated' if shape.is_gated else '     '} {best.microseconds:7.1f} us "
            f"{bandwidth:5.2f} TB/s, cuBLAS {library_us:7.1f} "
            f"us, {len(trials)} tried, error {self.error(best):.1e}, {_short(best.choice)}",
            flush=True,
        )
        for trial in trials[1:3]:
            print(f"      {trial.microseconds:7.1f} us {_short(trial.choice)}", flush=True)
        if 0 < library_us < 0.97 * best.microseconds and not shape.is_gated:
            return best._replace(choice=LinearChoice("library"), microseconds=library_us)
        return best

    def _time_all(self, shape: LinearShape, batch: int) -> list[Trial]:
        trials = []
        for choice in candidates(shape, batch):
            try:
                took = time_graph(self.launch(shape, batch, choice), 12, num_replays=3)
            except Exception as error:  # noqa: BLE001 - a choice that does not compile is no choice
                print(f"{choice}: {type(error).__name__}: {str(error)[:120]}", flush=True)
                continue
            trials.append(Trial(shape, batch, choice, took))
        return sorted(trials, key=lambda trial: trial.microseconds)

    def launch(self, shape: LinearShape, batch: int, choice: LinearChoice) -> Callable[[int], None]:
        """What to time: one product, on each copy of the weights in turn."""
        copies = self._copies(shape)
        norm = torch.ones(shape.size, dtype=torch.bfloat16, device="cuda")
        if has_norm(shape) and batch == 1:
            copies = [copy._replace(norm=norm) for copy in copies]
        x, out, workspace = self._operands(shape, batch, choice)

        def run(turn: int) -> None:
            linear(
                x, copies[turn % len(copies)], out,
                workspace=workspace, choice=choice, is_chained=True,
                residual=None if has_norm(shape) else out,
            )  # fmt: skip

        return run

    def time_library(self, shape: LinearShape, batch: int) -> float:
        """Microseconds of the bare product by cuBLAS."""
        copies = self._copies(shape)
        x = torch.randn(batch, shape.size, dtype=torch.bfloat16, device="cuda")
        out = torch.empty(batch, weight_rows(shape), dtype=torch.bfloat16, device="cuda")
        return time_graph(
            lambda turn: torch.mm(x, copies[turn % len(copies)].weight.T, out=out),
            max(12, len(copies)),
        )

    def error(self, trial: Trial) -> float:
        """‖out − ref‖ / ‖ref‖, of poisoned output, on fresh input."""
        weights = self._copies(trial.shape)[-1]
        x, out, workspace = self._operands(trial.shape, trial.num_tokens, trial.choice)
        out.fill_(torch.nan)
        linear(x, weights, out, workspace=workspace, choice=trial.choice, is_chained=True)
        wide = weights.weight.float()
        reference = x.float() @ wide.T
        if weights.scales is not None:
            reference *= weights.scales
        if trial.shape.is_gated:
            gate, up = reference.chunk(2, -1)
            reference = torch.nn.functional.silu(gate) * up
        return float((out - reference).norm() / reference.norm())

    def _copies(self, shape: LinearShape) -> list[LinearWeights]:
        size = weight_bytes(shape)
        fitting = len(self._pool) // size
        wanted = min(fitting, -(-4 * _L2_BYTES // size) + 1)
        return [make_weights(shape, self._pool, copy * size) for copy in range(wanted)]

    def _operands(
        self, shape: LinearShape, batch: int, choice: LinearChoice
    ) -> tuple[torch.Tensor, torch.Tensor, Workspace]:
        floats, counters = linear_needs(batch, shape, choice)
        return (
            torch.randn(batch, shape.size, dtype=torch.bfloat16, device="cuda"),
            torch.empty(batch, shape.num_rows, dtype=torch.bfloat16, device="cuda"),
            Workspace(
                "cuda",
                num_floats=floats,
                num_counters=counters,
                num_elements=scratch_needs(batch, shape),
            ),
        )


def _short(choice: LinearChoice) -> str:
    return (
        f"{choice.form} n{choice.block_n} k{choice.block_k} b{choice.block_b} s{choice.splits} "
        f"w{choice.num_warps} st{choice.num_stages} u{choice.unroll}"
        f"{' norm inside' if choice.fuses_norm else ''}"
    )


def _store(trials: list[Trial], path: Path) -> None:
    """Replace what was measured again; keep the rest."""
    entries = json.loads(path.read_text(encoding="utf-8"))["choices"] if path.exists() else []
    table = {(tuple(e["shape"].values()), e["num_tokens"]): e for e in entries}
    for trial in trials:
        table[trial.shape, trial.num_tokens] = {
            "shape": trial.shape._asdict(),
            "num_tokens": trial.num_tokens,
            "microseconds": round(trial.microseconds, 2),
            "choice": trial.choice._asdict(),
        }
    lines = ",\n".join(json.dumps(table[key]) for key in sorted(table))
    path.write_text('{"choices": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
