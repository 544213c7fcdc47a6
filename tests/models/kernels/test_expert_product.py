from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.expert_choice import ExpertTile, choose_expert_tile, max_tiles
from hybridgen.models.kernels.expert_groups import ExpertGroups, group_choices
from hybridgen.models.kernels.expert_product import ExpertMatrix, expert_product
from hybridgen.models.kernels.expert_sum import expert_sum
from tests.models.kernels.oracles import product, relative_error

NUM_EXPERTS = 5
TILE = ExpertTile(block_n=16, block_k=32, block_b=16)


def choices(num_tokens: int, num_chosen: int, *, idle: slice = slice(0)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_tokens)
    order = torch.rand(num_tokens, NUM_EXPERTS - 1, generator=generator).argsort(1)
    chosen = order[:, :num_chosen].int().contiguous()  # nobody takes the last expert
    chosen[idle] = -1
    return chosen


def groups_of(chosen: torch.Tensor, block_b: int) -> ExpertGroups:
    count = chosen.numel()
    groups = ExpertGroups(
        torch.zeros(count, dtype=torch.int32),
        torch.zeros(max_tiles(count, NUM_EXPERTS, block_b), 3, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )
    group_choices(chosen, groups, num_experts=NUM_EXPERTS, block_b=block_b)
    return groups


def weights(num_rows: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    values = torch.randn(NUM_EXPERTS, num_rows, size, generator=generator)
    values[-1] = torch.nan  # whoever is not chosen is not read, or the results would show it
    if dtype == torch.int8:
        return (values.nan_to_num(99) * 40).clamp(-128, 127).to(dtype)
    return values.to(dtype)


def inputs(num_rows: int, size: int) -> torch.Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(size))


def run(
    x: torch.Tensor, matrix: ExpertMatrix, chosen: torch.Tensor, tile: ExpertTile = TILE
) -> torch.Tensor:
    out = torch.full((chosen.numel(), matrix.num_rows), torch.nan)
    expert_product(
        x,
        matrix,
        groups_of(chosen, tile.block_b),
        out,
        num_chosen=chosen.shape[1],
        num_choices=chosen.numel(),
        tile=tile,
    )
    return out


def expected(x: torch.Tensor, matrix: ExpertMatrix, chosen: torch.Tensor) -> torch.Tensor:
    """Row by choice in order of the places; x by token if gated, by place if not."""
    flat, num_chosen = chosen.flatten(), chosen.shape[1]
    order = [c for e in range(NUM_EXPERTS) for c in (flat == e).nonzero()[:, 0].tolist()]
    rows = []
    for place, choice in enumerate(order):
        expert = int(flat[choice])
        row = x[choice // num_chosen if matrix.is_gated else place][None]
        scales = None if matrix.scales is None else matrix.scales[expert]
        out = product(row, matrix.weight[expert], scales=scales, is_gated=matrix.is_gated)
        rows.append(out[0])
    whole = torch.full((len(flat), matrix.num_rows), torch.nan, dtype=torch.float64)
    targets = list(range(len(order))) if matrix.is_gated else order
    whole[targets] = torch.stack(rows)
    return whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize(
    ("num_tokens", "num_chosen", "size"), [(1, 2, 64), (3, 1, 76), (22, 2, 40)]
)
def test_products_of_experts_equal_the_oracle(
    dtype: torch.dtype, is_gated: bool, num_tokens: int, num_chosen: int, size: int
) -> None:
    chosen = choices(num_tokens, num_chosen)
    scales = None
    if dtype == torch.int8:
        scales = torch.rand(NUM_EXPERTS, 44 if is_gated else 22) * 0.02
    matrix = ExpertMatrix(weights(44 if is_gated else 22, size, dtype), scales, is_gated)
    x = inputs(num_tokens if is_gated else chosen.numel(), size)
    x = x.to(torch.float16 if dtype == torch.float16 else torch.float32)
    found = run(x, matrix, chosen)
    assert relative_error(found, expected(x, matrix, chosen)) < 1e-6


def test_gates_may_go_through_gelu() -> None:
    chosen, x = choices(4, 2), inputs(4, 32) / 4
    matrix = ExpertMatrix(weights(20, 32), is_gated=True, is_gelu=True)
    found = run(x, matrix, chosen)
    flat = chosen.flatten()
    order = [c for e in range(NUM_EXPERTS) for c in (flat == e).nonzero()[:, 0].tolist()]
    for place, choice in enumerate(order):
        both = matrix.weight[int(flat[choice])].double() @ x[choice // 2].double()
        right = torch.nn.functional.gelu(both[:10], approximate="tanh") * both[10:]
        assert relative_error(found[place], right) < 1e-6


@pytest.mark.parametrize("is_gated", [True, False])
def test_idle_rows_are_neither_read_nor_written(is_gated: bool) -> None:
    chosen = choices(9, 2, idle=slice(3, 7))
    x = inputs(9 if is_gated else 18, 40)
    if is_gated:
        x[3:7] = torch.nan
    matrix = ExpertMatrix(weights(44 if is_gated else 22, 40), is_gated=is_gated)
    found, right = run(x, matrix, chosen), expected(x, matrix, chosen)
    assert torch.equal(found.isnan(), right.isnan())
    assert relative_error(found.nan_to_num(), right.nan_to_num()) < 1e-6


def test_a_token_gives_the_same_in_any_company() -> None:
    matrix, chosen, x = ExpertMatrix(weights(44, 40), is_gated=True), choices(19, 2), inputs(19, 40)
    whole = run(x, matrix, chosen)
    order = groups_of(chosen, 16).order.tolist()
    for token in (0, 18):
        alone = run(x[token : token + 1], matrix, chosen[token : token + 1])
        places = [order.index(2 * token + rank) for rank in range(2)]
        assert torch.equal(alone, whole[sorted(places)])


def test_products_that_do_not_fit_are_refused() -> None:
    chosen, x = choices(4, 2), inputs(4, 40)
    matrix = ExpertMatrix(weights(44, 40), is_gated=True)
    for wrong, name in (
        (matrix._replace(scales=torch.ones(NUM_EXPERTS, 44)), "scales"),
        (matrix._replace(weight=matrix.weight.half()), "dtype"),
        (matrix._replace(weight=weights(44, 41)), "x"),
        (matrix._replace(weight=weights(44, 40).transpose(0, 1)), "weight"),
    ):
        with pytest.raises(InternalError, match=name):
            run(x, wrong, chosen)
    with pytest.raises(InternalError, match="groups"):
        expert_product(
            x, matrix, groups_of(chosen[:1], 16), torch.empty(8, 22),
            num_chosen=2, num_choices=8, tile=TILE,
        )  # fmt: skip


@pytest.mark.parametrize("has_shared", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
def test_the_sum_over_experts_equals_the_oracle(has_shared: bool, has_residual: bool) -> None:
    chosen, size = choices(6, 3, idle=slice(4, 5)), 1100
    rows, shares = inputs(18, size), torch.rand(6, 3)
    rows[12:15] = torch.nan
    right = (rows.double().nan_to_num().view(6, 3, size) * shares.double()[..., None]).sum(1)
    more: dict[str, torch.Tensor] = {}
    if has_shared:
        logits, shared = torch.randn(6, 9), torch.randn(6, size)
        more = {"shared": shared, "shared_gate": logits[:, 8]}
        right += logits[:, 8:].double().sigmoid() * shared
    out = torch.randn(6, size) if has_residual else torch.full((6, size), torch.nan)
    if has_residual:
        right += out
        more["residual"] = out
    expert_sum(rows, chosen, shares, out, **more)
    assert relative_error(out, right) < 1e-6


def test_operands_of_a_sum_that_do_not_fit_are_refused() -> None:
    chosen, shares = choices(2, 2), torch.ones(2, 2)
    for rows, more, name in (
        (torch.ones(4, 9), {}, "rows"),
        (torch.ones(4, 8).half(), {}, "rows"),
        (torch.ones(4, 8), {"shared": torch.ones(2, 8)}, "shared_gate"),
        (torch.ones(4, 8), {"residual": torch.ones(2, 7)}, "residual"),
    ):
        with pytest.raises(InternalError, match=name):
            expert_sum(rows, chosen, shares, torch.ones(2, 8), **more)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_tiles_are_small_where_there_are_few_choices_and_large_where_there_are_many(
    bits: int,
) -> None:
    mixtral = [choose_expert_tile(2 * n, 8, 14336, bits) for n in (1, 64, 2048)]
    assert [tile.block_b for tile in mixtral] == [16, 16, 64]
    qwen = choose_expert_tile(8, 128, 768, bits)
    assert 8 * -(-768 // qwen.block_n) >= 256
    assert mixtral[2].block_n == 128
