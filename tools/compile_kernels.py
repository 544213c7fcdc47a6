"""Compiles what ``tune_kernels`` and ``tune_attention`` will try into Triton's cache.

Several processes share the work. A kernel depends on a shape only by whether it is gated, follows a
norm and so on, so each is launched once on a matrix with few rows.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from hybridgen.models.kernels.attention import AttentionChoice
from hybridgen.models.kernels.linear import LinearWeights, linear, linear_needs, scratch_needs
from hybridgen.models.kernels.linear_choice import LinearChoice, LinearShape
from hybridgen.models.kernels.workspace import Workspace
from tools.kernel_candidates import NORMED, attention_candidates, product_candidates
from tools.layer_chain import BF16, LayerChain, Pool
from tools.model_shapes import MODELS, ModelShape, weight_rows

_NUM_PROCESSES = 15
_NUM_ROWS = 512


class LinearTask(NamedTuple):
    """What makes a kernel of a product another one."""

    size: int
    is_gated: bool
    weight_bits: int
    is_normed: bool
    is_head: bool
    num_tokens: int
    choice: LinearChoice


class AttentionTask(NamedTuple):
    """The same for attention."""

    model: ModelShape
    choice: AttentionChoice


def compile_products(models: list[ModelShape], bits: list[int], batches: list[int]) -> None:
    """Compile the kernels of products; returns when all are done."""
    _run_shares(["products", json.dumps([[model.name for model in models], bits, batches])])


def compile_attention(models: list[ModelShape], batches: list[int]) -> None:
    """Compile the kernels of attention; returns when all are done."""
    _run_shares(["attention", json.dumps([[model.name for model in models], [], batches])])


def _run_shares(words: list[str]) -> None:
    command = [sys.executable, "-m", "tools.compile_kernels", *words]
    children = [subprocess.Popen([*command, str(share)]) for share in range(_NUM_PROCESSES)]
    for child in children:
        child.wait()


def linear_tasks(
    models: list[ModelShape], bits: list[int], batches: list[int]
) -> Iterator[LinearTask]:
    """All kernels of products, each once."""
    seen = set()
    for model, bit, batch in itertools.product(models, bits, batches):
        for name, shape in model.products(bit).items():
            for choice in product_candidates(name, shape, batch):
                if choice.form == "library":
                    continue
                # Its size is compiled into the kernel for one token only.
                size = shape.size if batch == 1 else 0
                choice = choice._replace(ahead=0)  # noqa: PLW2901  what is not compiled in
                kind = shape.is_gated, bit, name in NORMED, name == "head"
                if (size, *kind, choice) not in seen:
                    seen.add((size, *kind, choice))
                    yield LinearTask(shape.size, *kind, batch, choice)


def attention_tasks(models: list[ModelShape], batches: list[int]) -> Iterator[AttentionTask]:
    """All kernels of attention, each once."""
    seen = set()
    for model, batch in itertools.product(models, batches):
        for choice in attention_candidates(batch, model.num_kv_heads):
            key = (
                model,
                choice._replace(splits=1 << (choice.splits - 1).bit_length(), min_share=0),
            )
            if key not in seen:
                seen.add(key)
                yield AttentionTask(model, choice)


def launch_linear(task: LinearTask) -> None:
    """Launch the kernel of a task once."""
    shape = LinearShape(_NUM_ROWS, task.size, task.is_gated, task.weight_bits)
    dtype = torch.int8 if task.weight_bits == 8 else BF16
    matrix = torch.zeros(weight_rows(shape), shape.size, dtype=dtype, device="cuda")
    scales = torch.ones(len(matrix), device="cuda") if task.weight_bits == 8 else None
    norm = torch.ones(shape.size, device="cuda") if task.is_normed else None
    weights = LinearWeights(matrix, scales=scales, is_gated=task.is_gated, norm=norm)
    x = torch.zeros(task.num_tokens, shape.size, dtype=BF16, device="cuda")
    out_dtype = torch.float32 if task.is_head else BF16
    out = torch.zeros(task.num_tokens, shape.num_rows, dtype=out_dtype, device="cuda")
    floats, counters = linear_needs(task.num_tokens, shape, task.choice)
    workspace = Workspace(
        "cuda",
        num_floats=floats,
        num_counters=counters,
        num_elements=scratch_needs(task.num_tokens, shape),
    )
    linear(
        x, weights, out, workspace=workspace, choice=task.choice, is_chained=True,
        residual=None if task.is_normed else out,
    )  # fmt: skip


def launch_attention(task: AttentionTask) -> None:
    """Launch attention of one layer once."""
    small = task.model._replace(hidden=256, inner=256, vocab_size=256)
    chain = LayerChain(small, 2, 16, Pool(1 << 26), num_layers=1, context=128)
    choices = dict.fromkeys(chain.shapes, LinearChoice("library"))
    chain.run_attention(chain.layers[0], chain.plan(choices, task.choice))


def main() -> int:
    """One share of the work: every n-th task."""
    kind, words, share = sys.argv[1], sys.argv[2], int(sys.argv[3])
    names, bits, batches = json.loads(words)
    models = [MODELS[name] for name in names]
    launches: Iterator[tuple[Callable[[], None], object]]
    if kind == "products":
        tasks = linear_tasks(models, bits, batches)
        launches = ((partial(launch_linear, task), task) for task in tasks)
    else:
        attentions = attention_tasks(models, batches)
        launches = ((partial(launch_attention, task), task) for task in attentions)
    for launch, task in itertools.islice(launches, share, None, _NUM_PROCESSES):
        _try(launch, task)
    torch.cuda.synchronize()
    return 0


def _try(launch: Callable[[], None], task: object) -> None:
    try:
        launch()
    except Exception as error:  # noqa: BLE001 - what does not compile is reported and left out
        print(f"{task}: {type(error).__name__}: {str(error)[:200]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
