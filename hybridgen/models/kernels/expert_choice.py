"""Tiles of the products of experts: how large, and how many there can be. A rule, not measured."""

from __future__ import annotations

from typing import NamedTuple

#: Programs below which a device of some 130 multiprocessors is not busy.
_MIN_PROGRAMS = 256


class ExpertTile(NamedTuple):
    """Blocks of one product.

    Attributes:
        block_n, block_k: rows of the weights, columns.
        block_b: tokens; the same for both products of a block.
        num_warps, num_stages: of one program.
    """

    block_n: int
    block_k: int
    block_b: int
    num_warps: int = 4
    num_stages: int = 3


def group_tile(num_choices: int, num_experts: int) -> int:
    """Tokens of a tile, for so many choices spread over the experts."""
    share = num_choices // num_experts
    return min(max(16, 1 << max(share - 1, 0).bit_length()), 64)


def max_tiles(num_choices: int, num_experts: int, block_b: int) -> int:
    """Most tiles that so many choices make: one for each expert begins, the others are full."""
    return min(num_choices, num_choices // block_b + num_experts)


def choose_expert_tile(
    num_choices: int, num_experts: int, num_rows: int, weight_bits: int
) -> ExpertTile:
    """Blocks that are large, and yet make enough programs.

    Args:
        num_choices: tokens times experts that each takes.
        num_experts: of the layer.
        num_rows: outputs of an expert; gated weights count their rows once.
        weight_bits: 8, 16 or 32.
    """
    block_b = group_tile(num_choices, num_experts)
    num_tiles = max_tiles(num_choices, num_experts, block_b)
    block_n = 128 if block_b == 64 else 64
    while block_n > 16 and num_tiles * -(-num_rows // block_n) < _MIN_PROGRAMS:
        block_n //= 2
    block_k = 32 if weight_bits == 32 else 64 if block_n == 128 else 128
    return ExpertTile(block_n, block_k, block_b, num_warps=8 if block_n == 128 else 4)
