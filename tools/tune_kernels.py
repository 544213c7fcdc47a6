"""Measures which kernels with which blocks make a decode step fastest, and stores them.

Usage: python -m tools.tune_kernels [--models 13b 8b] [--bits 16] [--batches 1 2 4 8 16 32 64 128]
       [--limit-s 220] [--output-folder hybridgen/models/kernels]

Needs a CUDA device. Kernels are compiled by several processes first. Then each product's choices
are tried in its place in a chain of layers (see ``layer_chain``), the other products as they are
best so far; the best few once more, with more or less of their weights asked for early. Attention
is tried between its two products, at a context of 1,024. What is measured is stored as it comes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hybridgen.models.kernels import attention, linear_choice
from hybridgen.models.kernels.attention import AttentionChoice, choose_attention
from hybridgen.models.kernels.linear_choice import LinearChoice, choose_linear
from tools.compile_kernels import compile_all
from tools.device_clock import time_graph
from tools.kernel_candidates import (
    MORE_AHEAD,
    MORE_POSITIONS_AHEAD,
    attention_candidates,
    product_candidates,
)
from tools.layer_chain import Choices, LayerChain, Pool
from tools.model_shapes import MODELS, ModelShape

CONTEXT = 1024
_SHORT_CONTEXT = 128  # of the chain for products: attention is there, but costs little
_NUM_LAYERS = 3
_NUM_FINALISTS = 3
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
    compile_all(models, options.bits, options.batches)
    print(f"compiled in {time.monotonic() - begin_s:.0f} s", flush=True)
    pool = Pool(_POOL_BYTES)
    tables = Tables(options.output_folder)
    for batch, bits, model in itertools.product(options.batches, options.bits, models):
        if time.monotonic() - begin_s > options.limit_s:
            print(f"out of time before {model.name}, {bits} bit, batch {batch}", flush=True)
            break
        tuner = Tuner(model, batch, bits, pool)
        with torch.inference_mode():
            tuner.search()
        tables.store(tuner)
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
        """Products, then attention between them, then the head; prints what each gained."""
        chain = self._chain(_SHORT_CONTEXT)
        names = ["gate_up", "down", "qkv", "output"]
        before_us = self._time_layers(chain, self.choices, num_replays=9)
        finalists = {name: self._first_round(chain, name) for name in names}
        for name in names:
            self._second_round(chain, name, finalists[name])
        after_us = self._time_layers(chain, self.choices, num_replays=9)
        print(
            f"{self.model.name} {self.bits} bit, batch {self.batch:3}, a layer at context "
            f"{_SHORT_CONTEXT}: {before_us:7.2f} -> {after_us:7.2f} us",
            flush=True,
        )
        for name in names:
            error = chain.product_error(name, chain.plan(self.choices, self.attention))
            print(f"    {name:8}{short(self.choices[name])}, error {error:.1e}", flush=True)
        self._search_head(chain)
        del chain
        self._search_attention()

    def _chain(self, context: int) -> LayerChain:
        return LayerChain(
            self.model, self.batch, self.bits, self._pool, num_layers=_NUM_LAYERS, context=context
        )

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

    def _search_attention(self) -> None:
        """Attention between its two products."""
        chain = self._chain(CONTEXT)

        def took(choice: AttentionChoice) -> float:
            plan = chain.plan(self.choices, choice)

            def run() -> None:
                for layer in chain.layers:
                    chain.run_attention(layer, plan)

            return _time(run, 5)

        tried = [self.attention, *attention_candidates(self.batch, self.model.num_kv_heads)]
        before_us = took(tried[0])
        times_us = {choice: took(choice) for choice in dict.fromkeys(tried)}
        best = sorted(times_us, key=times_us.__getitem__)[:_NUM_FINALISTS]
        for choice, ahead in itertools.product(best, MORE_POSITIONS_AHEAD):
            times_us[choice._replace(ahead=ahead)] = took(choice._replace(ahead=ahead))
        self.attention = min(times_us, key=times_us.__getitem__)
        print(
            f"    attention with its products at context {CONTEXT}: {before_us:.2f} -> "
            f"{times_us[self.attention]:.2f} us, {tuple(self.attention)}",
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
        f"{f' p{choice.programs}' if choice.programs else ''}"
        f"{' late' if choice.yields_late else ''}"
    )


class Tables:
    """The stored choices, of which those that are measured again are replaced.

    Args:
        folder: where both tables are written.
    """

    def __init__(self, folder: Path) -> None:
        self._linear_path = folder / linear_choice.TABLE_PATH.name
        self._attention_path = folder / attention.TABLE_PATH.name
        self._linear = {
            (*entry["shape"].values(), entry["num_tokens"]): entry
            for entry in _entries(linear_choice.TABLE_PATH)
        }
        self._attention = {
            (entry["num_kv_heads"], entry["num_sequences"]): entry
            for entry in _entries(attention.TABLE_PATH)
        }

    def store(self, tuner: Tuner) -> None:
        """Write both tables with the choices of ``tuner``."""
        for name, shape in tuner.shapes.items():
            self._linear[*shape, tuner.batch] = {
                "shape": shape._asdict(),
                "num_tokens": tuner.batch,
                "choice": tuner.choices[name]._asdict(),
            }
        self._attention[tuner.model.num_kv_heads, tuner.batch] = {
            "num_kv_heads": tuner.model.num_kv_heads,
            "num_sequences": tuner.batch,
            "choice": tuner.attention._asdict(),
        }
        _write(self._linear_path, [self._linear[key] for key in sorted(self._linear)])
        _write(self._attention_path, [self._attention[key] for key in sorted(self._attention)])


def _entries(path: Path) -> list[dict[str, Any]]:
    table: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return table["choices"]


def _write(path: Path, entries: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    path.write_text('{"choices": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
