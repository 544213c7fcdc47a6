"""INT8 weights times some tokens in integers: exact but for the limbs, whose error is bounded."""

from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.cuda.int8_rows import dequantize_rows
from hybridgen.models.kernels.limb_rows import split_rows
from hybridgen.models.kernels.linear import LinearWeights
from hybridgen.models.kernels.linear_choice import LinearChoice
from tests.models.kernels.oracles import EPSILON, product, relative_error
from tests.models.kernels.test_limb_gemv import quantized
from tests.models.kernels.test_linear import operands, run

LIMBS = LinearChoice("limb_dot", block_n=16, block_k=32, block_b=8)


def numbers(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the limbs of x stand for, float64, and the scales of its groups."""
    limbs = torch.full((2 * len(x), x.shape[1]), 99, dtype=torch.int8)
    scales = torch.full((-(-x.shape[1] // group), len(x)), torch.nan)
    split_rows(x, limbs, scales, group=group)
    wide = limbs.double().view(len(x), 2, -1)
    of_columns = scales.double().T.repeat_interleave(group, 1)[:, : x.shape[1]]
    return (256 * wide[:, 0] + wide[:, 1]) * of_columns, scales


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_product_with_all_that_may_follow_equals_the_oracle(splits: int, is_gated: bool) -> None:
    x, matrix = operands(9, is_gated=is_gated)  # two blocks of tokens, two tiles and a half
    more = {"bias": torch.randn(len(matrix)), "norm": torch.rand(76) + 0.5}
    residual = None if is_gated else torch.randn(9, 22)
    weights = quantized(matrix)
    choice = LIMBS._replace(splits=splits)
    out = run(choice, x, weights._replace(is_gated=is_gated, **more), residual=residual)
    scales = weights.scales
    wanted = product(x, weights.weight, scales=scales, is_gated=is_gated, residual=residual, **more)
    assert relative_error(out, wanted) < 5e-5


def test_results_may_be_capped_and_a_norm_may_follow() -> None:
    x, matrix = operands(3)
    weights = quantized(matrix)
    for more in ({"softcap": 5.0}, {"post_norm": torch.rand(22) + 0.5}):
        out = run(LIMBS, x, weights._replace(**more))
        cap, norm = more.get("softcap", 0.0), more.get("post_norm")
        wanted = product(x, weights.weight, scales=weights.scales, cap=cap, post_norm=norm)
        assert relative_error(out, wanted) < 5e-5


@pytest.mark.parametrize("outlier", [1.0, 50.0, 1000.0])
def test_limbs_cost_a_twentieth_of_what_rounded_weights_do_at_most(outlier: float) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 1024, generator=generator)
    x[:, ::61] *= outlier
    matrix = torch.randn(64, 1024, generator=generator)
    weights = quantized(matrix)
    rounded = dequantize_rows(weights.weight, weights.scales, torch.float64)
    out = run(LIMBS._replace(block_n=64, block_k=512), x, weights)
    wanted = x.double() @ rounded.T
    of_limbs = (out.double() - wanted).norm()
    of_weights = (wanted - x.double() @ matrix.double().T).norm()
    assert of_limbs < of_weights / 20


def test_a_limb_is_wrong_by_half_a_step_of_its_group_at_most() -> None:
    x, _ = operands(3, size=76)
    x[:, ::7] *= 300
    x[1, 32:64] = 0.0
    found, scales = numbers(x, 32)
    assert ((found - x).abs() <= 0.5001 * scales.T.repeat_interleave(32, 1)[:, :76]).all()
    assert torch.equal(found[1, 32:64], torch.zeros(32).double())


@pytest.mark.parametrize("largest", [3.3e38, 65535.99, 2e-33])
def test_any_finite_size_of_x_fits(largest: float) -> None:
    x = torch.tensor([[1.0, -1.0, 0.5, 0.25]]) * largest
    torch.testing.assert_close(numbers(x, 4)[0], x.double(), rtol=1e-4, atol=0)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")  # numpy's alone
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_visible_in_its_row_alone(bad: float) -> None:
    x, matrix = operands(3)
    x[1, 40] = bad
    out = run(LIMBS, x, quantized(matrix))
    assert out.isfinite().all(1).tolist() == [True, False, True]
    assert not out[1].isfinite().any()


def test_a_token_gives_the_same_in_any_company() -> None:
    x, matrix = operands(7)
    weights = quantized(matrix)
    assert torch.equal(run(LIMBS, x[3:5], weights), run(LIMBS, x, weights)[3:5])


def test_rows_may_be_further_apart_than_they_are_long() -> None:
    x, matrix = operands(3)
    weights = quantized(matrix)
    wide = torch.nn.functional.pad(x, (0, 8))[:, :76]
    assert torch.equal(run(LIMBS, wide, weights), run(LIMBS, x, weights))


def test_weights_that_are_not_int8_are_refused() -> None:
    with pytest.raises(InternalError, match="INT8"):
        run(LIMBS, torch.ones(2, 32), LinearWeights(torch.ones(4, 32), epsilon=EPSILON))
