"""A block of experts on a CUDA device: time, and the share of the read bandwidth.

    python -m tools.bench_experts [--models 8x7b 30b-a3b] [--batches 1 8 64 2048]
                                  [--quantize-weights 8]

Weights are random, tokens too, so they choose experts evenly. Blocks take turns on weights that no
cache holds together, in one CUDA graph. What must be read are the experts that somebody chose.
Each result is compared with plain torch on the same weights.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import NamedTuple

import msgspec
import torch

from hybridgen.formats.inspect import inspect_model
from hybridgen.models.config import Experts, ModelConfig
from hybridgen.models.cuda.layers import FeedForward, TorchLayers
from hybridgen.models.cuda.rope_tables import RopeTables, rope_tables
from hybridgen.models.cuda.triton_layers import TritonLayers
from hybridgen.models.cuda.weights import random_device_weights
from tools.bench_step import CONFIGS, MODELS, make_config
from tools.device_clock import read_bandwidth, time_graph

BF16 = torch.bfloat16
#: Blocks that take turns: more weights than the second-level cache holds.
NUM_BLOCKS = 4
NUM_LAUNCHES = 16


class Bench(NamedTuple):
    """Blocks of one model, without attention and with a small vocabulary."""

    config: ModelConfig
    experts: Experts
    blocks: list[FeedForward]
    ropes: RopeTables
    is_int8: bool


def make_bench(name: str, *, is_int8: bool) -> Bench:
    """The blocks of ``MODELS[name]`` with random weights."""
    path = str(CONFIGS / f"{MODELS[name]}.json")
    whole = inspect_model(path, make_config(path, 1)).config
    if whole.experts is None:
        raise SystemExit(f"{name} has no experts")
    device = torch.device("cuda")
    config = msgspec.structs.replace(
        whole, num_layers=NUM_BLOCKS, vocab_size=256, num_heads=1, num_kv_heads=1
    )
    weights = random_device_weights(config, BF16, device, is_int8=is_int8)
    blocks = [layer.feed_forward for layer in weights.layers]
    return Bench(config, whole.experts, blocks, rope_tables(config, 16, device), is_int8)


def bench_batch(bench: Bench, batch: int, bandwidth: float) -> None:
    """One line of results."""
    layers = TritonLayers(
        bench.config, bench.ropes, [batch], BF16, is_int8=bench.is_int8, is_chained=True
    )
    x = torch.randn(batch, bench.config.hidden_size, device="cuda").to(BF16)
    out = torch.empty_like(x)

    def launch(turn: int) -> None:
        layers.mix(x, bench.blocks[turn % NUM_BLOCKS], out, x)

    took_us = time_graph(launch, NUM_LAUNCHES)
    num_bytes = needed_bytes(bench, batch)
    launch(0)
    right = torch.empty_like(x)
    TorchLayers(bench.config, bench.ropes).mix(x, bench.blocks[0], right, x)
    error = float((out.float() - right.float()).norm() / right.float().norm())
    print(
        f"  batch {batch:5}: {took_us:8.1f} us, {num_bytes / 1e6:7.1f} MB, "
        f"{num_bytes / took_us * 1e6 / bandwidth:.2f} of the read bandwidth, error {error:.4f}",
        flush=True,
    )


def needed_bytes(bench: Bench, batch: int) -> int:
    """Weights that a block must read, if every expert is as likely."""
    experts, element_bytes = bench.experts, 1 if bench.is_int8 else 2
    num_busy = 1 - (1 - experts.num_chosen / experts.num_experts) ** batch
    sizes = {
        ".mlp.experts.": num_busy * element_bytes,
        ".mlp.shared_expert.": element_bytes,
        ".mlp.gate.": 2,
    }
    return int(
        sum(
            math.prod(shape) * each
            for name, shape in bench.config.weight_shapes().items()
            if name.startswith("model.layers.0.")
            for part, each in sizes.items()
            if part in name
        )
    )


def main() -> int:
    """All models and batches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["8x7b", "30b-a3b"], choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 64, 512, 2048])
    parser.add_argument("--quantize-weights", type=int, default=16, choices=[8, 16])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device was found", file=sys.stderr)
        return 69
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}: {bandwidth / 1e12:.2f} TB/s read")
    for name in options.models:
        bench = make_bench(name, is_int8=options.quantize_weights == 8)
        print(f"{name}, {options.quantize_weights} bit")
        for batch in options.batches:
            bench_batch(bench, batch, bandwidth)
    return 0


if __name__ == "__main__":
    sys.exit(main())
