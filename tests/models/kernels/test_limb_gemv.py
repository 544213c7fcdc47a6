"""INT8 weights times one token in integers: exact but for the limbs, whose error is bounded."""

from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.cuda.int8_rows import dequantize_rows, quantize_rows
from hybridgen.models.kernels.linear import LinearWeights
from hybridgen.models.kernels.linear_choice import LinearChoice
from tests.models.kernels.oracles import EPSILON, product, relative_error
from tests.models.kernels.test_linear import run

LIMBS = LinearChoice("limb_gemv", block_n=4, block_k=64)
SIZE = 80  # a whole tile and a quarter


def operands(num_rows: int, size: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """A token, and weights as a model has them before they are INT8."""
    generator = torch.Generator().manual_seed(num_rows * size)
    return (
        torch.randn(1, size, generator=generator),
        torch.randn(num_rows, size, generator=generator),
    )


def quantized(matrix: torch.Tensor) -> LinearWeights:
    values, scales = torch.empty_like(matrix, dtype=torch.int8), torch.empty(len(matrix))
    quantize_rows(matrix, values, scales)
    return LinearWeights(values, scales=scales, epsilon=EPSILON)


@pytest.mark.parametrize("choice", [LIMBS, LIMBS._replace(block_n=16, block_k=256, num_stages=3)])
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("is_gelu", [False, True])
def test_a_product_with_all_that_may_follow_equals_the_oracle(
    choice: LinearChoice, is_gated: bool, is_gelu: bool
) -> None:
    x, matrix = operands(44 if is_gated else 22)
    more = {"bias": torch.randn(len(matrix)), "norm": torch.rand(SIZE) + 0.5}
    residual = None if is_gated else torch.randn(1, 22)
    weights = quantized(matrix)
    out = run(
        choice, x, weights._replace(is_gated=is_gated, is_gelu=is_gelu, **more), residual=residual
    )
    wanted = product(
        x, weights.weight, scales=weights.scales,
        is_gated=is_gated, is_gelu=is_gelu, residual=residual, **more,
    )  # fmt: skip
    assert relative_error(out, wanted) < 5e-5


def test_results_may_be_capped() -> None:
    x, matrix = operands(22)
    weights = quantized(matrix)
    out = run(LIMBS, x, weights._replace(softcap=5.0))
    assert out.abs().max() <= 5.0
    wanted = product(x, weights.weight, scales=weights.scales, cap=5.0)
    assert relative_error(out, wanted) < 5e-5


@pytest.mark.parametrize("outlier", [1.0, 50.0, 1000.0])
def test_limbs_cost_a_twentieth_of_what_rounded_weights_do_at_most(outlier: float) -> None:
    x, matrix = operands(64, 1024)
    x[0, ::61] *= outlier
    weights = quantized(matrix)
    rounded = dequantize_rows(weights.weight, weights.scales, torch.float64)
    out = run(LIMBS._replace(block_n=32, block_k=512), x, weights)
    wanted = x.double() @ rounded.T
    of_limbs = (out.double() - wanted).norm()
    of_weights = (wanted - x.double() @ matrix.double().T).norm()
    assert of_limbs < of_weights / 20


def test_an_element_is_wrong_by_half_a_step_of_each_group_at_most() -> None:
    x, matrix = operands(22)
    x[0, ::7] *= 300
    weights = quantized(matrix)
    out = run(LIMBS, x, weights)
    wanted = product(x, weights.weight, scales=weights.scales)
    tops = x.double().view(-1, 16).abs().amax(1) * 2.0**-15
    sums = weights.weight.double().abs().view(22, -1, 16).sum(2)
    bound = sums @ tops * weights.scales + 1e-6 * wanted.abs()
    assert ((out.double() - wanted).abs()[0] < bound).all()


def test_what_bfloat16_holds_is_exact_down_to_a_128th_of_its_groups_largest() -> None:
    x, matrix = operands(22)
    x = (x.sign() * (x.abs() % 127 + 1)).bfloat16().float()
    x[0, ::16] = -127.5
    weights = quantized(matrix)
    out = run(LIMBS, x, weights)
    assert relative_error(out, product(x, weights.weight, scales=weights.scales)) < 2e-7


@pytest.mark.parametrize("largest", [2e36, 65535.99, 1.9999999, 2e-33, 0.0])
def test_any_finite_size_of_x_fits(largest: float) -> None:
    x, matrix = torch.full((1, SIZE), largest), torch.eye(16, SIZE)
    out = run(LIMBS, x * matrix.new_tensor([1.0, -1.0]).repeat(SIZE // 2), quantized(matrix))
    wanted = largest * torch.tensor([1.0, -1.0]).repeat(8)
    torch.testing.assert_close(out[0], wanted, rtol=4e-5, atol=0)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, where the device has none
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_visible(bad: float) -> None:
    x, matrix = operands(22)
    x[0, 77] = bad
    assert not run(LIMBS, x, quantized(matrix)).isfinite().any()


def test_half_precision_is_read_as_it_is() -> None:
    x, matrix = operands(22)
    weights = quantized(matrix)
    out = run(LIMBS, x.half(), weights, out_dtype=torch.float32)
    wanted = product(x.half(), weights.weight, scales=weights.scales)
    assert relative_error(out, wanted) < 5e-5


@pytest.mark.parametrize(
    ("num_tokens", "size", "dtype"),
    [(2, 80, torch.int8), (1, 72, torch.int8), (1, 80, torch.float32)],
)
def test_what_does_not_fit_is_refused(num_tokens: int, size: int, dtype: torch.dtype) -> None:
    scales = torch.ones(4) if dtype == torch.int8 else None
    weights = LinearWeights(torch.ones(4, size, dtype=dtype), scales=scales)
    with pytest.raises(InternalError, match="whole groups"):
        run(LIMBS, torch.ones(num_tokens, size), weights)
