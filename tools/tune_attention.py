"""Measures which choices for attention make a decode step fastest, and stores them.

Usage: python -m tools.tune_attention [--models 13b 8b] [--batches 1 8 64] [--limit-s 220]
       [--output-folder hybridgen/models/kernels]

Needs a CUDA device. Choices are tried between the two products that attention stands between (see
``layer_chain``), at a context of 1,024; printed is what attention adds to them. The best are tried
once more with more or less asked for early, and checked against float32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hybridgen.models.kernels import attention
from hybridgen.models.kernels.attention import (
    AttentionChoice,
    choose_attention,
    decode_attention,
)
from hybridgen.models.kernels.linear import linear
from hybridgen.models.kernels.linear_choice import choose_linear
from tools.attention_error import attention_error
from tools.compile_kernels import compile_attention
from tools.device_clock import time_graph
from tools.kernel_candidates import MORE_POSITIONS_AHEAD, TUNED_CONTEXT, attention_candidates
from tools.layer_chain import Layer, LayerChain, Plan, Pool
from tools.model_shapes import MODELS, ModelShape

_NUM_LAYERS = 3
_NUM_FINALISTS = 3
_NUM_PRINTED = 4
_POOL_BYTES = 12 << 30
_MAX_ERROR = 2e-2  # of bf16 results; a wrong kernel is far above

Table = dict[tuple[int, int], AttentionChoice]


def main() -> int:
    """Compile, measure, store."""
    options = _parse()
    models = [MODELS[name] for name in options.models]
    begin_s = time.monotonic()
    compile_attention(models, options.batches)
    print(f"compiled in {time.monotonic() - begin_s:.0f} s", flush=True)
    pool = Pool(_POOL_BYTES)
    table = _stored()
    with torch.inference_mode():
        for batch, model in itertools.product(options.batches, models):
            if time.monotonic() - begin_s > options.limit_s:
                print(f"out of time before {model.name}, batch {batch}", flush=True)
                break
            table[model.num_kv_heads, batch] = Search(model, batch, pool).run()
            _store(table, options.output_folder / attention.TABLE_PATH.name)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--limit-s", type=float, default=220.0)
    parser.add_argument("--output-folder", type=Path, default=attention.TABLE_PATH.parent)
    return parser.parse_args()


class Search:
    """The best choice for one model and batch.

    Args:
        model: its shape.
        batch: rows of a step.
        pool: memory on the device.
    """

    def __init__(self, model: ModelShape, batch: int, pool: Pool) -> None:
        self._model, self._batch = model, batch
        self._chain = LayerChain(
            model, batch, 16, pool, num_layers=_NUM_LAYERS, context=TUNED_CONTEXT
        )
        self._products = {
            name: choose_linear(batch, shape) for name, shape in model.products(16).items()
        }

    def run(self) -> AttentionChoice:
        """Measure, print and check; the fastest that is right."""
        stored = choose_attention(self._batch, self._model.num_kv_heads)
        candidates = attention_candidates(self._batch, self._model.num_kv_heads)
        times = {choice: self._took(choice) for choice in dict.fromkeys((stored, *candidates))}
        for choice, ahead in itertools.product(
            _fastest(times)[:_NUM_FINALISTS], MORE_POSITIONS_AHEAD
        ):
            times[choice._replace(ahead=ahead)] = self._took(choice._replace(ahead=ahead))
        order = _fastest(times)
        for choice in order[:_NUM_FINALISTS]:
            times[choice] = self._took(choice, num_replays=15)
        order = _fastest(times)
        bare_us = self._time(self._run_products, self._plan(stored), 15)
        name = f"{self._model.name} attention in its chain, batch {self._batch:3}"
        for choice in dict.fromkeys((*order[:_NUM_PRINTED], stored)):
            label = "stored" if choice == stored else ""
            print(f"{name}: {times[choice] - bare_us:6.2f} us {label} {tuple(choice)}", flush=True)
        for choice in order:
            error = self._error(choice)
            if error < _MAX_ERROR:
                print(
                    f"{name}: best is right to {error:.1e}, products {bare_us:.2f} us", flush=True
                )
                return choice
            print(f"{name}: WRONG by {error:.1e}: {tuple(choice)}", flush=True)
        return stored

    def _plan(self, choice: AttentionChoice) -> Plan:
        return self._chain.plan(self._products, choice)

    def _took(self, choice: AttentionChoice, num_replays: int = 5) -> float:
        """Microseconds of both products and attention; infinite if it cannot be launched."""
        took = [float("inf")]

        def measure() -> None:
            plan = self._plan(choice)
            took[0] = self._time(self._chain.run_attention, plan, num_replays)

        _try(measure, choice)
        return took[0]

    def _time(self, run: Callable[[Layer, Plan], None], plan: Plan, num_replays: int) -> float:
        def run_all(_: int) -> None:
            for layer in self._chain.layers:
                run(layer, plan)

        return time_graph(run_all, 1, num_replays=num_replays) / _NUM_LAYERS

    def _run_products(self, layer: Layer, plan: Plan) -> None:
        """What stands around attention, without it."""
        chain = self._chain
        for name, x, out, residual in (
            ("qkv", chain.hidden, chain.qkv, None),
            ("output", chain.attended, chain.hidden, chain.hidden),
        ):
            linear(
                x, layer.products[name], out,
                workspace=plan.workspace, choice=plan.choices[name], is_chained=True,
                residual=residual,
            )  # fmt: skip

    def _error(self, choice: AttentionChoice) -> float:
        """Of the result and of the new key, with everything they are written over poisoned."""
        chain, plan = self._chain, self._plan(choice)
        cache = chain.layers[0].cache
        chain.qkv.normal_()
        chain.attended.fill_(torch.nan)
        plan.workspace.partials.fill_(torch.nan)
        decode_attention(
            chain.qkv, cache, chain.attended, chain.rope, chain.positions, chain.tables,
            num_heads=self._model.num_heads, workspace=plan.workspace, choice=choice,
            is_chained=True,
        )  # fmt: skip
        error = attention_error(
            self._model, chain.qkv, chain.attended, cache,
            rope=chain.rope, position=int(chain.positions[0]), tables=chain.tables,
        )  # fmt: skip
        return float("inf") if math.isnan(error) else error


def _fastest(times: dict[AttentionChoice, float]) -> list[AttentionChoice]:
    return sorted(times, key=times.__getitem__)


def _try(launch: Callable[[], None], choice: AttentionChoice) -> None:
    try:
        launch()
    except Exception as error:  # noqa: BLE001 - a choice that cannot be launched is no choice
        print(f"{tuple(choice)}: {type(error).__name__}: {str(error)[:200]}", flush=True)


def _stored() -> Table:
    return {
        (heads, batch): choice
        for heads, choices in attention.load_table().items()
        for batch, choice in choices.items()
    }


def _store(table: Table, path: Path) -> None:
    lines = ",\n".join(
        json.dumps({"num_kv_heads": heads, "num_sequences": batch, "choice": choice._asdict()})
        for (heads, batch), choice in sorted(table.items())
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"choices": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
