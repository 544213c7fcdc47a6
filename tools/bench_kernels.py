"""Times of the device kernels, beside cuBLAS, torch and the bytes they must move.

Usage: python -m tools.bench_kernels [--models 13b 8b] [--batches 1 8 32 64] [--contexts 512 1024]
       [--sections products attention step] [--table linear_choices.json] [--ahead 0]

Needs a CUDA device. All weights of the model are on it, random; everything is timed in CUDA graphs.
"×" is the time over bytes ÷ read bandwidth, which is measured first.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hybridgen.models.kernels import linear_choice
from hybridgen.models.kernels.attention import (
    AttentionChoice,
    attention_needs,
    choose_attention,
    decode_attention,
)
from hybridgen.models.kernels.embedding import gather_embedding
from hybridgen.models.kernels.linear import LinearWeights, linear
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.workspace import Workspace
from tools.attention_error import attention_error
from tools.device_clock import product_rate, read_bandwidth, time_graph
from tools.model_shapes import MODELS, ModelShape, weight_bytes, weight_rows

_BLOCK_SIZE = 16
_BF16 = torch.bfloat16


def main() -> int:
    """Measure and print."""
    options = _parse()
    if options.table:
        linear_choice.TABLE_PATH = options.table
    if options.ahead is not None:
        _override_ahead(options.ahead)
    bandwidth = read_bandwidth()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: read {bandwidth / 1e12:.2f} "
        f"TB/s, bf16 product {product_rate() / 1e12:.0f} TFLOP/s",
        flush=True,
    )
    for name in options.models:
        if "attention" in options.sections:
            bench_attention(MODELS[name], options, bandwidth)
        if {"products", "step"} & set(options.sections):
            with torch.inference_mode():
                step = DecodeStep(MODELS[name])
                for batch in options.batches:
                    bench_step(step, batch, options, bandwidth)
            del step
            torch.cuda.empty_cache()
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--contexts", nargs="+", type=int, default=[512, 1024])
    parser.add_argument("--sections", nargs="+", default=["products", "attention", "step"])
    parser.add_argument("--table", type=Path, help="choices other than the stored ones")
    parser.add_argument("--ahead", type=int, help="columns asked for early, whatever is stored")
    parser.add_argument("--positions-ahead", type=int, help="the same for attention")
    return parser.parse_args()


def _override_ahead(ahead: int) -> None:
    for choices in linear_choice.load_table().values():
        for num_tokens, choice in choices.items():
            choices[num_tokens] = choice._replace(ahead=ahead)


def _attention_choice(
    model: ModelShape, batch: int, options: argparse.Namespace
) -> AttentionChoice:
    choice = choose_attention(batch, model.num_kv_heads)
    if options.positions_ahead is not None:
        choice = choice._replace(ahead=options.positions_ahead)
    return choice


class Layer(NamedTuple):
    """Weights of one layer."""

    qkv: LinearWeights
    output: LinearWeights
    gate_up: LinearWeights
    down: LinearWeights


class DecodeStep:
    """A whole model with random weights, and its decode step by our kernels and by torch's."""

    def __init__(self, model: ModelShape) -> None:
        self.model = model
        products = model.products()
        norm = torch.ones(model.hidden, dtype=torch.float32, device="cuda")

        def make(name: str, *, has_norm: bool) -> LinearWeights:
            shape = products[name]
            matrix = torch.empty(weight_rows(shape), shape.size, dtype=_BF16, device="cuda")
            matrix.normal_(0.0, 0.1 * shape.size**-0.5)
            return LinearWeights(matrix, is_gated=shape.is_gated, norm=norm if has_norm else None)

        self.layers = [
            Layer(
                make("qkv", has_norm=True),
                make("output", has_norm=False),
                make("gate_up", has_norm=True),
                make("down", has_norm=False),
            )
            for _ in range(model.num_layers)
        ]
        self.head = make("head", has_norm=True)
        self.embedding = make("head", has_norm=False).weight
        self.weight_bytes = sum(
            weight_bytes(shape) * model.times(name) for name, shape in products.items()
        )

    def buffers(self, batch: int) -> Buffers:
        """Activations of a batch."""
        return Buffers(self.model, batch)

    def run_products(self, b: Buffers, *, has_norms: bool = False) -> None:
        """Only the matrix products, in the order of a step, each on the result of the last."""
        width = self.model.num_heads * self.model.head_dim

        def product(x: torch.Tensor, w: LinearWeights, out: torch.Tensor, **more: Any) -> None:
            bare = w if has_norms else w._replace(norm=None)
            linear(x, bare, out, workspace=b.workspace, is_chained=True, **more)

        for layer in self.layers:
            product(b.hidden, layer.qkv, b.qkv)
            product(b.qkv[:, :width], layer.output, b.hidden, residual=b.hidden)
            product(b.hidden, layer.gate_up, b.inner)
            product(b.inner, layer.down, b.hidden, residual=b.hidden)
        product(b.hidden, self.head, b.logits)

    def run_library(self, b: Buffers) -> None:
        """The same products by cuBLAS."""
        width = self.model.num_heads * self.model.head_dim
        for layer in self.layers:
            torch.mm(b.hidden, layer.qkv.weight.T, out=b.qkv)
            torch.mm(b.qkv[:, :width], layer.output.weight.T, out=b.hidden)
            torch.mm(b.hidden, layer.gate_up.weight.T, out=b.both)
            torch.mm(b.both[:, : self.model.inner], layer.down.weight.T, out=b.hidden)
        torch.mm(b.hidden, self.head.weight.T, out=b.logits)

    def run(self, b: Buffers, caches: list[PagedCache], choice: AttentionChoice | None) -> None:
        """The whole step: ids to logits."""
        work: dict[str, Any] = {"workspace": b.workspace, "is_chained": True}
        gather_embedding(b.ids, self.embedding, b.hidden)
        for layer, cache in zip(self.layers, caches, strict=False):
            linear(b.hidden, layer.qkv, b.qkv, **work)
            decode_attention(
                b.qkv, cache, b.attended, b.rope, b.positions, b.tables,
                num_heads=self.model.num_heads, choice=choice, **work,
            )  # fmt: skip
            linear(b.attended, layer.output, b.hidden, residual=b.hidden, **work)
            linear(b.hidden, layer.gate_up, b.inner, **work)
            linear(b.inner, layer.down, b.hidden, residual=b.hidden, **work)
        linear(b.hidden, self.head, b.logits, **work)


class Buffers:
    """Activations and lengths of one batch; all sequences at the same position."""

    def __init__(self, model: ModelShape, batch: int, context: int = 1024) -> None:
        q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim

        def rows(size: int) -> torch.Tensor:
            return torch.randn(batch, size, dtype=_BF16, device="cuda")

        self.hidden, self.inner = rows(model.hidden), rows(model.inner)
        self.qkv, self.attended = rows(q_size + 2 * kv_size), rows(q_size)
        self.both, self.logits = rows(2 * model.inner), rows(model.vocab_size)
        self.ids = torch.randint(model.vocab_size, (batch,), device="cuda")
        self.workspace = Workspace(
            "cuda",
            num_floats=1 << 26,
            num_counters=1 << 14,
            num_elements=batch * (model.hidden + 2 * model.inner),
        )
        angles = torch.rand(context + 1, model.head_dim // 2, device="cuda") * 6
        self.rope = (angles.cos(), angles.sin())
        self.positions = torch.full((batch,), context, dtype=torch.int32, device="cuda")
        width = context // _BLOCK_SIZE + 1
        order = torch.randperm(batch * width, device="cuda").int()
        self.tables = order.view(batch, width)
        self.num_blocks = batch * width


def make_cache(model: ModelShape, num_blocks: int, *, is_head_first: bool = True) -> PagedCache:
    """Random keys and values; memory by heads first, or positions first."""
    outer, inner = model.num_kv_heads, _BLOCK_SIZE
    if not is_head_first:
        outer, inner = inner, outer

    def make() -> torch.Tensor:
        memory = torch.randn(num_blocks, outer, inner, model.head_dim, dtype=_BF16, device="cuda")
        return memory if is_head_first else memory.transpose(1, 2)

    return PagedCache(make(), make())


def bench_step(step: DecodeStep, batch: int, options: argparse.Namespace, bandwidth: float) -> None:
    """Products by both, then whole steps at each context."""
    model = step.model
    floor_us = step.weight_bytes / bandwidth * 1e6
    if "products" in options.sections:
        b = step.buffers(batch)
        ways: dict[str, Callable[[int], None]] = {
            "ours": lambda _: step.run_products(b),
            "with norms": lambda _: step.run_products(b, has_norms=True),
            "cuBLAS": lambda _: step.run_library(b),
        }
        for name, way in ways.items():
            took = time_graph(way, 1)
            print(
                f"{model.name} products, batch {batch:3}, {name}: {took / 1e3:6.3f} ms "
                f"×{took / floor_us:.3f}",
                flush=True,
            )
    if "step" not in options.sections:
        return
    for context in options.contexts:
        b = Buffers(model, batch, context)
        kv_bytes = 2 * batch * context * model.num_kv_heads * model.head_dim * 2
        num_caches = min(model.num_layers, max(1, (60 << 30) // kv_bytes))
        caches = [make_cache(model, b.num_blocks) for _ in range(num_caches)]
        caches *= -(-model.num_layers // num_caches)
        floor = floor_us + kv_bytes * model.num_layers / bandwidth * 1e6
        choice = _attention_choice(model, batch, options)
        took = time_graph(lambda _, b=b, c=caches, a=choice: step.run(b, c, a), 1)
        print(
            f"{model.name} step, batch {batch:3}, context {context}: {took / 1e3:6.3f} ms "
            f"×{took / floor:.3f} of {floor / 1e3:.3f} ms",
            flush=True,
        )
        del caches
        torch.cuda.empty_cache()


def bench_attention(model: ModelShape, options: argparse.Namespace, bandwidth: float) -> None:
    """Attention of one layer: both memory orders, and torch on contiguous keys."""
    for batch, context in itertools.product(options.batches, options.contexts):
        b = Buffers(model, batch, context)
        kv_bytes = 2 * batch * context * model.num_kv_heads * model.head_dim * 2
        num_caches = max(2, min(12, -(-(240 << 20) // kv_bytes)))
        floor_us = kv_bytes / bandwidth * 1e6
        choice = _attention_choice(model, batch, options)
        for is_head_first in (True, False):
            caches = [
                make_cache(model, b.num_blocks, is_head_first=is_head_first)
                for _ in range(num_caches)
            ]
            b.attended.fill_(torch.nan)
            took = _time_attention(model, b, caches, choice)
            print(
                f"{model.name} attention, batch {batch:3}, context {context}: {took:7.1f} us "
                f"×{took / floor_us:.2f} {'heads' if is_head_first else 'positions'} first, "
                f"{tuple(choice)}",
                flush=True,
            )
            if is_head_first:
                last = caches[(max(12, len(caches)) - 1) % len(caches)]
                print(f"{'':24} error {_error(model, b, last):.1e}")
            del caches
        library = _time_library_attention(model, batch, context, num_caches)
        print(f"{'':24} torch on contiguous keys {library:7.1f} us ×{library / floor_us:.2f}")


def _time_attention(
    model: ModelShape, b: Buffers, caches: list[PagedCache], choice: AttentionChoice
) -> float:
    floats, counters = attention_needs(
        len(b.qkv), model.num_kv_heads, model.num_heads // model.num_kv_heads, model.head_dim,
        choice,
    )  # fmt: skip
    workspace = Workspace("cuda", num_floats=floats, num_counters=counters)
    return time_graph(
        lambda turn: decode_attention(
            b.qkv, caches[turn % len(caches)], b.attended, b.rope, b.positions, b.tables,
            num_heads=model.num_heads, workspace=workspace, choice=choice, is_chained=True,
        ),
        max(12, len(caches)),
    )  # fmt: skip


def _error(model: ModelShape, b: Buffers, cache: PagedCache) -> float:
    return attention_error(
        model, b.qkv, b.attended, cache,
        rope=b.rope, position=int(b.positions[0]), tables=b.tables,
    )  # fmt: skip


def _time_library_attention(model: ModelShape, batch: int, context: int, num_caches: int) -> float:
    shape = (batch, model.num_kv_heads, context, model.head_dim)
    pairs = [
        tuple(torch.randn(shape, dtype=_BF16, device="cuda") for _ in range(2))
        for _ in range(num_caches)
    ]
    q = torch.randn(batch, model.num_heads, 1, model.head_dim, dtype=_BF16, device="cuda")
    return time_graph(
        lambda turn: torch.nn.functional.scaled_dot_product_attention(
            q, *pairs[turn % num_caches], enable_gqa=model.num_heads != model.num_kv_heads
        ),
        max(12, num_caches),
    )


if __name__ == "__main__":
    sys.exit(main())
