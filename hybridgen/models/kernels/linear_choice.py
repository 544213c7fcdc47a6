"""Which kernel with which blocks makes a matrix product: a measured table, and a rule beside it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

TABLE_PATH = Path(__file__).with_name("linear_choices.json")

#: Tokens beyond which products that nobody measured are cuBLAS's.
MAX_DOT_TOKENS = 64
#: The same for INT8 weights. cuBLAS gets them in the dtype of x, written out first: five times
#: their bytes, which pays only when many tokens share them.
MAX_INT8_DOT_TOKENS = 128
#: Columns that share a scale where x is made integers; one thread reads as many weights at once.
LIMB_GROUP = 16
#: Most weights that are written out at once; a matrix with more comes in pieces.
MAX_DEQUANTIZED = 1 << 28

LinearForm = Literal["gemv", "limb_gemv", "dot", "limb_dot", "library"]


class LinearChoice(NamedTuple):
    """How one product is made.

    Attributes:
        form: one token on the vector units in float32, the same in integers (INT8 weights, size a
            multiple of 16), some on the matrix units, the same in integers, or cuBLAS.
        block_n, block_k, block_b: rows of the weights, columns, tokens of one tile.
        splits: programs that share the columns of one tile ("dot", "limb_dot").
        num_warps, num_stages: of one program.
        unroll: iterations in a row ("gemv").
        fuses_norm: a norm before the product is made in the same kernel.
        ahead: columns of its weights that a program asks for before it waits for x (the same).
        is_early: the first ``block_k`` columns are even read before ("dot"); ``ahead`` counts from
            there on.
    """

    form: LinearForm
    block_n: int = 1
    block_k: int = 1
    block_b: int = 1
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 1
    unroll: int = 1
    fuses_norm: bool = False
    ahead: int = 0
    is_early: bool = False


class LinearShape(NamedTuple):
    """What a product is chosen by.

    Attributes:
        num_rows, size: of the weights; gated weights count their rows once.
        is_gated: gates and ups in one matrix.
        weight_bits: 8, 16 or 32.
    """

    num_rows: int
    size: int
    is_gated: bool
    weight_bits: int


def choose_linear(num_tokens: int, shape: LinearShape) -> LinearChoice:
    """The measured choice of the next larger batch, or the rule's for a shape not measured."""
    measured = load_table().get(shape, {})
    batches = [batch for batch in measured if batch >= num_tokens]
    return measured[min(batches)] if batches else default_choice(num_tokens, shape)


def default_choice(num_tokens: int, shape: LinearShape) -> LinearChoice:
    """A choice for shapes nobody measured: right for all, good for large ones."""
    if num_tokens == 1:
        return LinearChoice("gemv", block_n=4, block_k=1024, fuses_norm=True)
    if num_tokens > (MAX_INT8_DOT_TOKENS if shape.weight_bits == 8 else MAX_DOT_TOKENS):
        return LinearChoice("library")
    block_b = min(max(16, 1 << (num_tokens - 1).bit_length()), 64)
    block_n, block_k = 64, 32 if shape.weight_bits == 32 else 128
    tiles, steps = -(-shape.num_rows // block_n), -(-shape.size // block_k)
    splits = max(1, min(264 // tiles, steps // 8, 8))
    stages = 3 if shape.is_gated or block_b > 16 else 4
    return LinearChoice("dot", block_n, block_k, block_b, splits, num_stages=stages, ahead=512)


@cache
def load_table() -> dict[LinearShape, dict[int, LinearChoice]]:
    """Shape → batch → choice, as ``tools/tune_kernels.py`` measured them."""
    table: dict[LinearShape, dict[int, LinearChoice]] = {}
    for entry in json.loads(TABLE_PATH.read_text(encoding="utf-8"))["choices"]:
        shape = LinearShape(**entry["shape"])
        table.setdefault(shape, {})[entry["num_tokens"]] = LinearChoice(**entry["choice"])
    return table
