"""Products by tiles of the tensor memory accelerator ("tma"), beside the stored choices.

Usage: python -m tools.bench_products [--models 13b 8b] [--batches 8 64] [--aheads 256 1024]

Needs a CUDA device from Hopper on. Every product is timed alone first: launches behind each other
in one graph, chained, each with weights that no cache holds. Then layers of the model, with the
stored choices, with each product's fastest tiles, and with these only where they gain. "×" is the
time over weight bytes ÷ 4.55 TB/s. Kernels are compiled by several processes before; each batch is
measured in a process of its own, so that a fault or a hang in one leaves the others.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import torch

from hybridgen.models.kernels.attention import choose_attention
from hybridgen.models.kernels.linear import LinearWeights, linear, linear_needs, scratch_needs
from hybridgen.models.kernels.linear_choice import LinearChoice, LinearShape, choose_linear
from hybridgen.models.kernels.workspace import Workspace
from tools.compile_kernels import LinearTask, launch_linear
from tools.device_clock import time_graph
from tools.kernel_candidates import NORMED, tma_candidates
from tools.layer_chain import BF16, Choices, LayerChain, Plan, Pool
from tools.model_shapes import MODELS, ModelShape, weight_bytes
from tools.tune_kernels import short

BANDWIDTH = 4.55e12
_NAMES = ("qkv", "output", "gate_up", "down", "head")
_NUM_PROCESSES = 15
_NUM_LAYERS = 3
_POOL_BYTES = 6 << 30
_CHAIN_BYTES = 900 << 20  # many times what the caches hold
_CHILD_LIMIT_S = 60.0


class Timed(NamedTuple):
    """A choice, how long a product takes with it, and how far off the result is."""

    microseconds: float
    error: float
    choice: LinearChoice


def main() -> int:
    """Compile, then measure batch by batch."""
    options = _parse()
    if options.share is not None:
        _compile_share(options)
        return 0
    if options.is_child:
        with torch.inference_mode():
            _measure(options)
        return 0
    begin_s = time.monotonic()
    _run_all([["--share", str(share)] for share in range(_NUM_PROCESSES)], options.batches)
    print(f"compiled in {time.monotonic() - begin_s:.0f} s", flush=True)
    for batch in options.batches:
        _run_all([["--is-child"]], [batch])
    print(f"{time.monotonic() - begin_s:.0f} s in all", flush=True)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--aheads", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--is-child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_all(shares: list[list[str]], batches: list[int]) -> None:
    """Processes with what this one was told, at the same time; one that hangs is ended."""
    words = [sys.executable, "-m", "tools.bench_products", *sys.argv[1:]]
    words += ["--batches", *map(str, batches)]
    children = [subprocess.Popen([*words, *share]) for share in shares]
    for child in children:
        try:
            if code := child.wait(_CHILD_LIMIT_S):
                print(f"a process ended with {code}", flush=True)
        except subprocess.TimeoutExpired:
            child.kill()
            print(f"a process was ended after {_CHILD_LIMIT_S:.0f} s", flush=True)


def _compile_share(options: argparse.Namespace) -> None:
    """Every n-th kernel, by a launch on a small matrix."""
    tasks: dict[LinearTask, None] = {}
    for name, batch, product in itertools.product(
        options.models, options.batches, ("qkv", "gate_up", "head", "down")
    ):
        shape = MODELS[name].products()[product]
        stored = choose_linear(batch, shape)
        for choice in (stored, *_candidates(shape, batch)):
            if choice.form != "library":
                bare = choice._replace(ahead=0, programs=min(choice.programs, 1))
                kind = shape.is_gated, 16, product in NORMED, product == "head"
                tasks[LinearTask(4096, *kind, batch, bare)] = None
    for task in itertools.islice(tasks, options.share, None, _NUM_PROCESSES):
        try:
            launch_linear(task)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - reported; its kernel is then left out below
            print(f"{short(task.choice)}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def _candidates(shape: LinearShape, batch: int) -> list[LinearChoice]:
    block_b = max(16, min(1 << (batch - 1).bit_length(), 128))
    return list(tma_candidates(shape, block_b))


def _measure(options: argparse.Namespace) -> None:
    """All products and layers of one batch."""
    pool = Pool(_POOL_BYTES)
    for name, batch in itertools.product(options.models, options.batches):
        model = MODELS[name]
        stored: Choices = {}
        tiles: Choices = {}
        mixed: Choices = {}
        for product, shape in model.products().items():
            stored[product] = choose_linear(batch, shape)
            bench = ProductBench(pool, shape, batch, has_residual=product not in NORMED)
            before = bench.try_choice(stored[product])
            tried = [
                bench.try_choice(choice._replace(ahead=ahead))
                for choice in _candidates(shape, batch)
                for ahead in options.aheads
            ]
            good = sorted(timed for timed in tried if timed is not None)
            _report(f"{name} B={batch:<3} {product:8}", shape, before, good)
            tiles[product] = good[0].choice if good else stored[product]
            is_gain = before is None or (good and good[0].microseconds < before.microseconds)
            mixed[product] = tiles[product] if is_gain else stored[product]
        _report_layers(model, batch, pool, {"stored": stored, "tma": tiles, "mixed": mixed})


class ProductBench:
    """One product of a model, many times behind each other with other weights.

    Args:
        pool: what the weights are taken from.
        shape: of the product.
        batch: rows.
        has_residual: the product is added to what its result held.
    """

    def __init__(self, pool: Pool, shape: LinearShape, batch: int, *, has_residual: bool) -> None:
        pool.clear()
        self._shape, self._has_residual = shape, has_residual
        count = max(3, -(-_CHAIN_BYTES // weight_bytes(shape)))
        self._weights = [pool.weights(shape, has_norm=False) for _ in range(min(count, 24))]
        self._x = torch.randn(batch, shape.size, dtype=BF16, device="cuda")
        dtype = torch.float32 if shape.num_rows > 20_000 else BF16  # logits
        self._out = torch.zeros(batch, shape.num_rows, dtype=dtype, device="cuda")
        self._reference = _reference(self._x, self._weights[0])

    def try_choice(self, choice: LinearChoice) -> Timed | None:
        """Time and error; None where it cannot be launched."""
        try:
            work = self._workspace(choice)
            error = self._error(choice, work)
            took_us = time_graph(
                lambda turn: self._launch(turn, choice, work), len(self._weights), num_replays=7
            )
        except Exception as problem:  # noqa: BLE001 - reported, and no choice then
            print(
                f"    {short(choice)}: {type(problem).__name__}: {str(problem)[:200]}", flush=True
            )
            return None
        if not error < 0.01:
            print(f"    {short(choice)}: WRONG, error {error:.1e}", flush=True)
            return None
        return Timed(took_us, error, choice)

    def _launch(self, turn: int, choice: LinearChoice, work: Workspace) -> None:
        linear(
            self._x, self._weights[turn], self._out, workspace=work, choice=choice,
            is_chained=True, residual=self._out if self._has_residual else None,
        )  # fmt: skip

    def _workspace(self, choice: LinearChoice) -> Workspace:
        floats, counters = linear_needs(len(self._x), self._shape, choice)
        elements = scratch_needs(len(self._x), self._shape)
        return Workspace("cuda", num_floats=floats, num_counters=counters, num_elements=elements)

    def _error(self, choice: LinearChoice, work: Workspace) -> float:
        """Of the later of two results into poisoned memory, which must be the same."""
        more: dict[str, Any] = {}
        if self._has_residual:
            more["residual"] = torch.zeros_like(self._out)
        results = []
        for _ in range(2):
            out = torch.full_like(self._out, torch.nan)
            linear(
                self._x, self._weights[0], out,
                workspace=work, choice=choice, is_chained=True, **more,
            )  # fmt: skip
            results.append(out)
        if not torch.equal(*results):
            return float("inf")
        return float((results[1].float() - self._reference).norm() / self._reference.norm())


def _reference(x: torch.Tensor, weights: LinearWeights) -> torch.Tensor:
    """The product in float32."""
    products = x.float() @ weights.weight.float().T
    if not weights.is_gated:
        return products
    gate, up = products.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _report(label: str, shape: LinearShape, before: Timed | None, good: list[Timed]) -> None:
    floor_us = weight_bytes(shape) / BANDWIDTH * 1e6
    for name, timed in (("stored", before), *(("tma", entry) for entry in good[:3])):
        if timed is not None:
            took_us, error, choice = timed
            print(
                f"{label} {name:6} {took_us:7.2f} us ×{took_us / floor_us:.3f} "
                f"error {error:.1e} {short(choice)}",
                flush=True,
            )


def _report_layers(model: ModelShape, batch: int, pool: Pool, sets: dict[str, Choices]) -> None:
    """Layers with each set of choices, at a context of 128."""
    chain = LayerChain(model, batch, 16, pool, num_layers=_NUM_LAYERS, context=128)
    attention = choose_attention(batch, model.num_kv_heads)
    shapes = model.products()
    floor_us = sum(weight_bytes(shapes[n]) for n in _NAMES if n != "head") / BANDWIDTH * 1e6
    for label, choices in sets.items():
        try:
            run = partial(_run_layers, chain, chain.plan(choices, attention))
            took_us = time_graph(run, 1, num_replays=9) / _NUM_LAYERS
        except Exception as error:  # noqa: BLE001 - reported
            print(f"    layers {label}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        print(
            f"{model.name} B={batch:<3} a layer  {label:6} {took_us:7.2f} us "
            f"×{took_us / floor_us:.3f}",
            flush=True,
        )


def _run_layers(chain: LayerChain, plan: Plan, _: int) -> None:
    chain.run(plan)


if __name__ == "__main__":
    sys.exit(main())
