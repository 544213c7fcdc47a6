"""Measures which kernels with which blocks make matrix products fastest, and stores them.

Usage: python -m tools.tune_kernels [--models 13b 8b] [--bits 16] [--batches 1 2 4 8 16 32 64 128]
       [--limit-s 220] [--output-folder hybridgen/models/kernels]

Needs a CUDA device. Kernels are compiled by several processes first. Then each product's choices
are tried in its place in a chain of layers (see ``layer_chain``), the other products as they are
best so far; the best few once more, with more or less of their weights asked for early. What is
measured is stored as it comes. ``tune_attention`` does the same for attention.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from hybridgen.models.kernels import linear_choice
from hybridgen.models.kernels.attention import choose_attention
from hybridgen.models.kernels.linear_choice import LinearChoice, choose_linear
from tools.compile_kernels import compile_products
from tools.device_clock import time_graph
from tools.kernel_candidates import MORE_AHEAD, product_candidates
from tools.layer_chain import Choices, LayerChain, Pool
from tools.model_shapes import MODELS, ModelShape

_CONTEXT = 128  # attention is in the chain, but costs little
_NUM_LAYERS = 3
_NUM_FINALISTS = 3
_MAX_ERROR = 2e-2  # of bf16 results; a wrong kernel is far above
_POOL_BYTES = 24 << 30


class Timed(NamedTuple):
    """What a chain of layers took with a choice."""

    microseconds: float
    choice: LinearChoice


def main() -> int:
    """Compile, measure, store."""
    options = _parse()
    begin_s = time.monotonic()
    models = [MODELS[name] for name in options.models]
    compile_products(models, options.bits, options.batches)
    print(f"compiled in {time.monotonic() - begin_s:.0f} s", flush=True)
    pool = Pool(_POOL_BYTES)
    table = Table(options.output_folder)
    for batch, bits, model in itertools.product(options.batches, options.bits, models):
        if time.monotonic() - begin_s > options.limit_s:
            print(f"out of time before {model.name}, {bits} bit, batch {batch}", flush=True)
            break
        tuner = Tuner(model, batch, bits, pool)
        with torch.inference_mode():
            tuner.search()
        table.store(tuner)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--bits", nargs="+", type=int, default=[16])
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    parser.add_argument("--batches", nargs="+", type=int, default=batches)
    parser.add_argument("--limit-s", type=float, default=220.0)
    parser.add_argument("--output-folder", type=Path, default=linear_choice.TABLE_PATH.parent)
    return parser.parse_args()


class Tuner:
    """The best choices for one model, batch and kind of weights.

    Args:
        model: its shape.
        batch: rows of a step.
        bits: of a weight.
        pool: memory on the device.
    """

    def __init__(self, model: ModelShape, batch: int, bits: int, pool: Pool) -> None:
        self.model, self.batch, self.bits = model, batch, bits
        self.shapes = model.products(bits)
        self.choices: Choices = {
            name: choose_linear(batch, shape) for name, shape in self.shapes.items()
        }
        self.attention = choose_attention(batch, model.num_kv_heads)
        self._pool = pool

    def search(self) -> None:
        """The products of a layer, then the output matrix; prints what each gained."""
        chain = LayerChain(
            self.model, self.batch, self.bits, self._pool, num_layers=_NUM_LAYERS, context=_CONTEXT
        )
        names = ["gate_up", "down", "qkv", "output"]
        before_us = self._time_layers(chain, self.choices, num_replays=9)
        finalists = {name: self._first_round(chain, name) for name in names}
        for name in names:
            self._second_round(chain, name, finalists[name])
        after_us = self._time_layers(chain, self.choices, num_replays=9)
        print(
            f"{self.model.name} {self.bits} bit, batch {self.batch:3}, a layer at context "
            f"{_CONTEXT}: {before_us:7.2f} -> {after_us:7.2f} us",
            flush=True,
        )
        for name in names:
            error = chain.product_error(name, chain.plan(self.choices, self.attention))
            print(f"    {name:8}{short(self.choices[name])}, error {error:.1e}", flush=True)
            if not error < _MAX_ERROR:
                print(f"    {name:8}WRONG, so it stays as it was stored", flush=True)
                self.choices[name] = choose_linear(self.batch, self.shapes[name])
        self._search_head(chain)

    def _time_layers(self, chain: LayerChain, choices: Choices, *, num_replays: int = 4) -> float:
        """Microseconds of one layer."""
        plan = chain.plan(choices, self.attention)
        return _time(lambda: chain.run(plan), num_replays)

    def _first_round(self, chain: LayerChain, name: str) -> list[LinearChoice]:
        """The best of all candidates; the very best is taken over."""
        shape = self.shapes[name]
        tried = [self.choices[name]]
        tried += product_candidates(name, shape, self.batch)
        timed = _rank(
            lambda choice: self._time_layers(chain, {**self.choices, name: choice}), tried
        )
        self.choices[name] = timed[0].choice
        return [entry.choice for entry in timed[:_NUM_FINALISTS]]

    def _second_round(self, chain: LayerChain, name: str, finalists: list[LinearChoice]) -> None:
        tried = [
            choice._replace(ahead=ahead)
            for choice in finalists
            for ahead in dict.fromkeys((choice.ahead, *MORE_AHEAD[choice.form]))
        ]
        timed = _rank(
            lambda choice: self._time_layers(chain, {**self.choices, name: choice}, num_replays=7),
            tried,
        )
        self.choices[name] = timed[0].choice

    def _search_head(self, chain: LayerChain) -> None:
        """The output matrix behind the last product of the last layer."""

        def took(choice: LinearChoice) -> float:
            plan = chain.plan({**self.choices, "head": choice}, self.attention)
            return _time(lambda: chain.run_head(plan), 5)

        shape = self.shapes["head"]
        tried = [self.choices["head"], *product_candidates("head", shape, self.batch)]
        before_us = took(tried[0])
        timed = _rank(took, tried)
        more = [timed[0].choice._replace(ahead=a) for a in MORE_AHEAD[timed[0].choice.form]]
        timed = _rank(took, [timed[0].choice, *more])
        self.choices["head"] = timed[0].choice
        print(
            f"    head    {short(timed[0].choice)} (with down {before_us * _NUM_LAYERS:.1f} -> "
            f"{timed[0].microseconds * _NUM_LAYERS:.1f} us)",
            flush=True,
        )


def _rank(took: Callable[[LinearChoice], float], tried: Sequence[LinearChoice]) -> list[Timed]:
    """The fastest first; what does not compile or fit is reported and left out."""
    timed = []
    for choice in dict.fromkeys(tried):
        try:
            timed.append(Timed(took(choice), choice))
        except Exception as error:  # noqa: BLE001 - a choice that cannot be launched is no choice
            print(f"    {choice}: {type(error).__name__}: {str(error)[:120]}", flush=True)
    return sorted(timed)


def _time(run: Callable[[], None], num_replays: int) -> float:
    """Microseconds of a layer of a chain."""
    return time_graph(lambda _: run(), 1, num_replays=num_replays) / _NUM_LAYERS


def short(choice: LinearChoice) -> str:
    """A choice in few letters."""
    return (
        f"{choice.form} n{choice.block_n} k{choice.block_k} b{choice.block_b} s{choice.splits} "
        f"w{choice.num_warps} st{choice.num_stages} ahead {choice.ahead}"
        f"{' norm inside' if choice.fuses_norm else ''}"
    )


class Table:
    """The stored choices, of which those that are measured again are replaced.

    Args:
        folder: where the table is written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / linear_choice.TABLE_PATH.name
        stored = json.loads(linear_choice.TABLE_PATH.read_text(encoding="utf-8"))
        self._entries = {
            (*entry["shape"].values(), entry["num_tokens"]): entry for entry in stored["choices"]
        }

    def store(self, tuner: Tuner) -> None:
        """Write the table with the choices of ``tuner``."""
        for name, shape in tuner.shapes.items():
            self._entries[*shape, tuner.batch] = {
                "shape": shape._asdict(),
                "num_tokens": tuner.batch,
                "choice": tuner.choices[name]._asdict(),
            }
        lines = ",\n".join(json.dumps(self._entries[key]) for key in sorted(self._entries))
        self._path.write_text('{"choices": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
