from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.config import Experts
from hybridgen.models.experts import ExpertSpace, PackedExperts, expert_bytes, mix
from tests.models.expert_weights import HIDDEN, SHAPES, mixed, random_experts
from tests.models.tiny_model import relative_error

DTYPES = [torch.float32, torch.bfloat16]


def inputs(num_rows: int, seed: int = 1, hidden_size: int = HIDDEN) -> torch.Tensor:
    return torch.randn(num_rows, hidden_size, generator=torch.Generator().manual_seed(seed))


def packed(
    pool: ComputePool,
    experts: Experts,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float32,
) -> PackedExperts:
    return PackedExperts(pool, experts, weights.__getitem__, dtype)


def run(pool: ComputePool, weights: PackedExperts, x: torch.Tensor) -> torch.Tensor:
    space = ExpertSpace(weights.experts, weights.hidden_size, len(x))
    return mix(pool, x, weights, space, torch.full_like(x, torch.nan))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("experts", SHAPES)
def test_experts_equal_the_float64_sum(experts, dtype):
    pool = ComputePool(2)
    weights = {name: tensor.to(dtype) for name, tensor in random_experts(experts).items()}
    x = inputs(30)
    found = run(pool, packed(pool, experts, weights, dtype), x)
    assert relative_error(found, mixed(experts, weights, x)) < 2e-6
    pool.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("experts", SHAPES)
def test_a_token_gives_the_same_bits_in_any_company_and_with_any_number_of_threads(experts):
    single, several = ComputePool(1), ComputePool(3)
    weights = random_experts(experts)
    x = inputs(41)
    matrices = packed(single, experts, weights)
    alone = torch.cat([run(single, matrices, row[None]) for row in x])
    for num_rows in (2, 7, 13, 41):
        assert torch.equal(run(several, matrices, x[:num_rows]), alone[:num_rows])
    assert torch.equal(run(several, matrices, x.flip(0)), alone.flip(0))
    single.close()
    several.close()


def test_wide_rows_are_added_up_in_parts(pool):
    experts, hidden = SHAPES[3], 600
    weights, x = random_experts(experts, hidden), inputs(3, hidden_size=hidden)
    found = run(pool, packed(pool, experts, weights), x)
    assert relative_error(found, mixed(experts, weights, x)) < 2e-6


def test_only_weights_of_chosen_experts_are_read(pool):
    experts = Experts(num_experts=6, num_chosen=2, size=16)
    weights, x = random_experts(experts), inputs(3)
    shares = (x @ weights["gate.weight"].T).softmax(-1)
    unused = set(range(6)) - set(shares.topk(2).indices.flatten().tolist())
    assert unused
    right = mixed(experts, weights, x)
    for expert in unused:
        for name in ("experts.gate_up_proj", "experts.down_proj"):
            weights[name][expert] = torch.nan
    assert relative_error(run(pool, packed(pool, experts, weights), x), right) < 2e-6


def test_of_equal_shares_the_first_are_chosen(pool):
    experts = Experts(num_experts=8, num_chosen=3, size=16)
    weights, x = random_experts(experts), inputs(4)
    weights["gate.weight"][:] = 0
    for expert in range(3, 8):
        weights["experts.down_proj"][expert] = torch.nan
    right = mixed(experts, weights, x)
    assert bool(right.isfinite().all())
    assert relative_error(run(pool, packed(pool, experts, weights), x), right) < 2e-6


def test_shares_of_logits_far_apart_are_exact(pool):
    experts = SHAPES[2]
    weights, x = random_experts(experts), 60 * inputs(12)
    found = run(pool, packed(pool, experts, weights), x)
    assert relative_error(found, mixed(experts, weights, x)) < 2e-6


def test_the_result_may_be_added_to_what_is_there(pool):
    experts = SHAPES[0]
    weights, x = random_experts(experts), inputs(5)
    matrices = packed(pool, experts, weights)
    wide = torch.full((5, HIDDEN + 9), 7.0)
    space = ExpertSpace(experts, HIDDEN, 8)
    mix(pool, x, matrices, space, wide[:, :HIDDEN], is_added=True)
    assert relative_error(wide[:, :HIDDEN], 7 + mixed(experts, weights, x)) < 2e-6
    assert bool((wide[:, HIDDEN:] == 7).all())


@pytest.mark.parametrize("experts", [SHAPES[0], SHAPES[3]])
def test_what_is_not_a_number_stays_with_its_token(experts, pool):
    weights, x = random_experts(experts), inputs(5)
    x[2, 7], x[3] = torch.nan, torch.inf
    found = run(pool, packed(pool, experts, weights), x)
    assert bool(found[2:4].isnan().all())
    others = [0, 1, 4]
    assert relative_error(found[others], mixed(experts, weights, x[others])) < 2e-6


@pytest.mark.parametrize("experts", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_panels_take_as_many_bytes_as_announced(experts, dtype):
    pool, taken = ComputePool(1), []

    def allocate(size: int) -> torch.Tensor:
        taken.append(size)
        return torch.empty(size, dtype=torch.uint8)

    PackedExperts(pool, experts, random_experts(experts).__getitem__, dtype, allocate)
    assert sum(taken) == expert_bytes(experts, HIDDEN, dtype)
    pool.close()


def test_rows_that_do_not_fit_are_refused():
    pool, experts = ComputePool(1), SHAPES[0]
    matrices = packed(pool, experts, random_experts(experts))
    space = ExpertSpace(experts, HIDDEN, 4)
    for x, out in (
        (inputs(5), inputs(5)),
        (inputs(2), inputs(3)),
        (inputs(2)[:, 1:], inputs(2)),
        (inputs(2), inputs(2).double()),
        (inputs(0), inputs(0)),
    ):
        with pytest.raises(InternalError, match="does not fit the experts"):
            mix(pool, x, matrices, space, out)
    pool.close()
