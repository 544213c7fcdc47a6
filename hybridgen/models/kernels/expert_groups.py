"""Choices of experts grouped by expert, on the device: what the products of experts go through.

A choice is one expert of one token; its number is token · num_chosen + rank. The place of a choice
is where it stands when all are ordered by expert, and by number for one expert.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.expert_choice import max_tiles
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer

#: Choices that are looked at together: in a decode step, and in a piece of prefill.
_SMALL_BLOCK, _BLOCK = 128, 1024
#: Numbers of a tile: its expert, its first place, the end of the expert's places.
TILE_WORDS = 3


class ExpertGroups(NamedTuple):
    """Routing tables of one batch, all int32.

    Attributes:
        order: [num_choices], number of the choice at each place; idle rows have none.
        tiles: [max_tiles, 3], expert, first place, end of the expert's places.
        num_tiles: [1], how many there are.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    num_tiles: torch.Tensor


@triton.jit(do_not_specialize=["num_choices"])
def _group_kernel(
    chosen: tl.tensor,
    order: tl.tensor,
    tiles: tl.tensor,
    num_tiles: tl.tensor,
    num_choices: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    """One program per expert counts the choices of all, then places its own."""
    expert = tl.program_id(0)
    bins = tl.arange(0, BINS)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, num_choices, BLOCK):
        choice = start + tl.arange(0, BLOCK)
        taken = tl.load(chosen + choice, mask=choice < num_choices, other=-1)
        counts += tl.histogram(tl.where(taken < 0, NUM_EXPERTS, taken), BINS)
    is_before = bins < expert
    begin = tl.sum(tl.where(is_before, counts, 0), 0)
    first_tile = tl.sum(tl.where(is_before, tl.cdiv(counts, BLOCK_B), 0), 0)
    count = tl.sum(tl.where(bins == expert, counts, 0), 0)
    end_tile = first_tile + tl.cdiv(count, BLOCK_B)
    if expert == NUM_EXPERTS - 1:
        tl.store(num_tiles, end_tile)
    if count > 0:
        place = begin
        for start in range(0, num_choices, BLOCK):
            choice = start + tl.arange(0, BLOCK)
            taken = tl.load(chosen + choice, mask=choice < num_choices, other=-1)
            is_own = (taken == expert).to(tl.int32)
            at = place + tl.cumsum(is_own, 0) - 1
            tl.store(order + at, choice, mask=is_own > 0)
            place += tl.sum(is_own, 0)
        for tile in range(first_tile, end_tile):
            words = tiles + tile * TILE_WORDS
            tl.store(words, expert)
            tl.store(words + 1, begin + (tile - first_tile) * BLOCK_B)
            tl.store(words + 2, begin + count)


def group_choices(
    chosen: torch.Tensor,
    groups: ExpertGroups,
    *,
    num_experts: int,
    block_b: int,
    is_chained: bool = False,
) -> None:
    """Write the routing tables; reads num_experts · num_choices numbers, from the caches.

    Args:
        chosen: int32[num_tokens, num_chosen]; -1 for idle rows.
        groups: receives the tables.
        num_experts: of the layer.
        block_b: tokens of a tile.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: operands do not fit.
    """
    num_choices = chosen.numel()
    problems = {
        "chosen": chosen.dtype != torch.int32 or not chosen.is_contiguous(),
        "order": len(groups.order) < num_choices,
        "tiles": len(groups.tiles) < max_tiles(num_choices, num_experts, block_b)
        or not groups.tiles.is_contiguous()
        or groups.tiles.shape[1] != TILE_WORDS,
        "dtype": any(table.dtype != torch.int32 for table in groups),
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("routing tables of experts do not fit", value=", ".join(wrong))
    block = _SMALL_BLOCK if num_choices <= _SMALL_BLOCK else _BLOCK
    _group_kernel[(num_experts,)](
        chosen, *groups, num_choices,
        NUM_EXPERTS=num_experts, BLOCK_B=block_b,
        BINS=triton.next_power_of_2(num_experts + 1), BLOCK=block, TILE_WORDS=TILE_WORDS,
        IS_CHAINED=is_chained, num_warps=4, launch_pdl=is_chained,
    )  # fmt: skip
