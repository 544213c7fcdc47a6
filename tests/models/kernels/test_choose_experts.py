from __future__ import annotations

from typing import Any

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.choose_experts import choose_experts
from hybridgen.models.kernels.expert_choice import max_tiles
from hybridgen.models.kernels.expert_groups import ExpertGroups, group_choices


def chosen_of(
    logits: torch.Tensor, num_experts: int, num_chosen: int, **more: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = torch.full((len(logits), num_chosen), -7, dtype=torch.int32)
    shares = torch.full((len(logits), num_chosen), torch.nan)
    settings = {"num_experts": num_experts, "is_normalized": False, **more}
    choose_experts(logits, chosen, shares, **settings)
    return chosen, shares


def router_logits(num_tokens: int, num_columns: int) -> torch.Tensor:
    return 3 * torch.randn(num_tokens, num_columns, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("num_experts", "num_chosen"), [(8, 2), (9, 1), (60, 4), (3, 3)])
@pytest.mark.parametrize("is_normalized", [False, True])
def test_the_greatest_shares_of_the_softmax_are_chosen(
    num_experts: int, num_chosen: int, is_normalized: bool
) -> None:
    logits = router_logits(5, num_experts + 1)  # the last column is a shared expert's gate
    logits[:, -1] = 100
    chosen, shares = chosen_of(logits, num_experts, num_chosen, is_normalized=is_normalized)
    right = logits[:, :num_experts].double().softmax(-1).topk(num_chosen)
    values = right.values / right.values.sum(-1, keepdim=True) if is_normalized else right.values
    assert torch.equal(chosen, right.indices.int())
    assert torch.allclose(shares.double(), values, rtol=1e-6, atol=0)


def test_of_equal_shares_the_first_are_chosen() -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0, 5.0, 5.0], [0.0] * 5])
    chosen, shares = chosen_of(logits, 5, 3, is_normalized=True)
    assert chosen.tolist() == [[1, 3, 4], [0, 1, 2]]
    assert torch.allclose(shares, torch.full((2, 3), 1 / 3))


def test_idle_rows_choose_nobody() -> None:
    positions = torch.tensor([4, -1, 0], dtype=torch.int32)
    chosen, _ = chosen_of(router_logits(3, 4), 4, 2, positions=positions)
    assert (chosen < 0).all(1).tolist() == [False, True, False]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter is numpy
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_numbers_give_such_shares_and_experts_that_exist(bad: float) -> None:
    logits = router_logits(2, 6)
    logits[0, 3], logits[1] = bad, torch.nan
    chosen, shares = chosen_of(logits, 6, 2)
    assert bool(shares.isnan().any(1).all())
    assert bool(((chosen >= 0) & (chosen < 6)).all())


def test_operands_of_a_choice_that_do_not_fit_are_refused() -> None:
    logits = router_logits(2, 4)
    with pytest.raises(InternalError, match="logits"):
        chosen_of(logits, 5, 2)
    with pytest.raises(InternalError, match="logits"):
        chosen_of(logits.double(), 4, 2)
    with pytest.raises(InternalError, match="chosen"):
        chosen_of(logits, 4, 5)
    with pytest.raises(InternalError, match="positions"):
        chosen_of(logits, 4, 2, positions=torch.zeros(3, dtype=torch.int32))


def grouped(chosen: torch.Tensor, num_experts: int, block_b: int) -> ExpertGroups:
    num_choices = chosen.numel()
    groups = ExpertGroups(
        torch.full((num_choices,), -7, dtype=torch.int32),
        torch.full((max_tiles(num_choices, num_experts, block_b), 3), -7, dtype=torch.int32),
        torch.full((1,), -7, dtype=torch.int32),
    )
    group_choices(chosen, groups, num_experts=num_experts, block_b=block_b)
    return groups


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "block_b"),
    [(1, 8, 2, 16), (40, 4, 3, 16), (20, 17, 7, 2), (600, 5, 2, 64)],
)
def test_choices_are_ordered_by_expert_and_cut_into_tiles(
    num_tokens: int, num_experts: int, num_chosen: int, block_b: int
) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    numbers = torch.rand(num_tokens, num_experts, generator=generator).argsort(1)
    chosen = numbers[:, :num_chosen].int().contiguous()
    chosen[num_tokens // 2 + 1 :: 3] = -1
    groups = grouped(chosen, num_experts, block_b)
    flat = chosen.flatten()
    expected = [c for e in range(num_experts) for c in (flat == e).nonzero()[:, 0].tolist()]
    assert groups.order.tolist()[: len(expected)] == expected
    assert groups.order.tolist()[len(expected) :] == [-7] * (len(flat) - len(expected))
    tiles, begin = [], 0
    for expert in range(num_experts):
        end = begin + int((flat == expert).sum())
        tiles += [[expert, first, end] for first in range(begin, end, block_b)]
        begin = end
    assert groups.num_tiles.item() == len(tiles)
    assert groups.tiles.tolist()[: len(tiles)] == tiles


@pytest.mark.parametrize("block_b", [1, 2, 16])
def test_the_most_tiles_there_can_be_are_enough_for_any_choices(block_b: int) -> None:
    generator = torch.Generator().manual_seed(3)
    for num_experts in (1, 3, 8):
        for num_choices in range(1, 50):
            taken = torch.randint(num_experts, (30, num_choices), generator=generator)
            most = max(
                sum(-(-int((row == e).sum()) // block_b) for e in range(num_experts))
                for row in taken
            )
            assert most <= max_tiles(num_choices, num_experts, block_b)


def test_all_rows_may_be_idle() -> None:
    groups = grouped(torch.full((3, 2), -1, dtype=torch.int32), 4, 16)
    assert groups.num_tiles.item() == 0


def test_tables_that_do_not_fit_are_refused() -> None:
    chosen = torch.zeros(4, 2, dtype=torch.int32)
    right = grouped(chosen, 4, 16)
    for wrong, name in (
        (right._replace(order=right.order[:7]), "order"),
        (right._replace(tiles=right.tiles[:3]), "tiles"),
        (right._replace(num_tiles=right.num_tiles.long()), "dtype"),
    ):
        with pytest.raises(InternalError, match=name):
            group_choices(chosen, wrong, num_experts=4, block_b=16)
