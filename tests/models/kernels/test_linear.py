from __future__ import annotations

from typing import Any

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.dequantize import dequantize
from hybridgen.models.kernels.linear import LinearWeights, linear, linear_needs, scratch_needs
from hybridgen.models.kernels.linear_choice import LinearChoice
from hybridgen.models.kernels.workspace import Workspace
from tests.models.kernels.oracles import EPSILON, product, relative_error

GEMV = LinearChoice("gemv", block_n=4, block_k=32, fuses_norm=True)
DOT = LinearChoice("dot", block_n=16, block_k=32, block_b=16)
SPLIT = DOT._replace(splits=3)
NORMED = SPLIT._replace(fuses_norm=True)
EARLY = NORMED._replace(is_early=True)
LIBRARY = LinearChoice("library")


def run(
    choice: LinearChoice,
    x: torch.Tensor,
    weights: LinearWeights,
    *,
    out_dtype: torch.dtype | None = None,
    **more: Any,
) -> torch.Tensor:
    floats, counters = linear_needs(len(x), weights.shape, choice)
    workspace = Workspace(
        "cpu",
        num_floats=floats,
        num_counters=counters,
        dtype=x.dtype,
        num_elements=scratch_needs(len(x), weights.shape),
        num_products=0 if weights.post_norm is None else len(x) * weights.shape.num_rows,
    )
    out = torch.full((len(x), weights.shape.num_rows), torch.nan, dtype=out_dtype or x.dtype)
    linear(x, weights, out, workspace=workspace, choice=choice, **more)
    assert not workspace.counters.any()
    return out


def operands(
    num_tokens: int, num_rows: int = 22, size: int = 76, *, is_gated: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows * size + num_tokens)
    rows = num_rows * (2 if is_gated else 1)
    return (
        torch.randn(num_tokens, size, generator=generator),
        torch.randn(rows, size, generator=generator),
    )


@pytest.mark.parametrize(
    ("choice", "num_tokens"),
    [
        (GEMV, 1),
        (GEMV._replace(block_n=1, num_stages=3), 1),
        (DOT, 3),
        (SPLIT, 5),
        (EARLY, 5),
        (DOT, 17),
        (DOT._replace(fuses_norm=True), 17),
        (NORMED, 5),
    ],
)
def test_a_product_with_all_that_may_follow_equals_the_oracle(
    choice: LinearChoice, num_tokens: int
) -> None:
    x, weight = operands(num_tokens)
    more = {"bias": torch.randn(22), "norm": torch.rand(76) + 0.5}
    residual = torch.randn(num_tokens, 22)
    weights = LinearWeights(weight, epsilon=EPSILON, **more)
    out = run(choice, x, weights, residual=residual)
    assert relative_error(out, product(x, weight, residual=residual, **more)) < 1e-6


@pytest.mark.parametrize(
    ("choice", "num_tokens"),
    [(GEMV, 1), (DOT, 3), (SPLIT, 3), (NORMED, 3), (EARLY, 3), (LIBRARY, 3)],
)
@pytest.mark.parametrize("is_gelu", [False, True])
def test_a_gated_product_equals_the_oracle(
    choice: LinearChoice, num_tokens: int, is_gelu: bool
) -> None:
    x, weight = operands(num_tokens, is_gated=True)
    more: dict[str, Any] = {"bias": torch.randn(44), "norm": torch.rand(76) + 0.5}
    more |= {"is_gated": True, "is_gelu": is_gelu}
    out = run(choice, x, LinearWeights(weight, epsilon=EPSILON, **more))
    assert relative_error(out, product(x, weight, **more)) < 1e-6


@pytest.mark.parametrize(("choice", "num_tokens"), [(GEMV, 1), (SPLIT, 3), (LIBRARY, 3)])
def test_results_may_be_capped(choice: LinearChoice, num_tokens: int) -> None:
    x, weight = operands(num_tokens)
    more = {"bias": torch.randn(22), "norm": torch.rand(76) + 0.5}
    out = run(choice, x, LinearWeights(weight, epsilon=EPSILON, softcap=5.0, **more))
    assert out.abs().max() <= 5.0
    assert relative_error(out, product(x, weight, cap=5.0, **more)) < 1e-6


@pytest.mark.parametrize(("choice", "num_tokens"), [(GEMV, 1), (SPLIT, 3), (LIBRARY, 3)])
@pytest.mark.parametrize("is_int8", [False, True])
def test_a_norm_may_follow_the_product(
    choice: LinearChoice, num_tokens: int, is_int8: bool
) -> None:
    x, weight = operands(num_tokens)
    more = {"bias": torch.randn(22), "post_norm": torch.rand(22) + 0.5}
    if is_int8:
        weight, more["scales"] = (weight * 40).to(torch.int8), torch.rand(22) * 0.02
    hidden = torch.randn(num_tokens, 22)
    wanted = product(x, weight, residual=hidden, **more)
    weights = LinearWeights(weight, epsilon=EPSILON, **more)
    assert relative_error(run(choice, x, weights, residual=hidden), wanted) < 1e-6
    alone = product(x, weight, **more)
    assert relative_error(run(choice, x, weights), alone) < 1e-6


@pytest.mark.parametrize(
    ("choice", "num_tokens"), [(GEMV, 1), (DOT, 3), (SPLIT, 3), (EARLY, 3), (LIBRARY, 3)]
)
@pytest.mark.parametrize("is_gated", [False, True])
def test_int8_weights_are_scaled_by_row(
    choice: LinearChoice, num_tokens: int, is_gated: bool
) -> None:
    x, weight = operands(num_tokens, is_gated=is_gated)
    weight = (weight * 40).clamp(-128, 127).to(torch.int8)
    weight[0, :2] = torch.tensor([-128, 127])
    scales = torch.rand(len(weight)) * 0.02
    out = run(choice, x, LinearWeights(weight, scales=scales, is_gated=is_gated))
    assert relative_error(out, product(x, weight, scales=scales, is_gated=is_gated)) < 1e-6


@pytest.mark.parametrize(("choice", "num_tokens"), [(GEMV, 1), (DOT, 2), (LIBRARY, 2)])
def test_half_weights_are_summed_in_float32(choice: LinearChoice, num_tokens: int) -> None:
    x, weight = (t.half() for t in operands(num_tokens, size=512))
    out = run(choice, x, LinearWeights(weight), out_dtype=torch.float32)
    limit = 1e-3 if choice.form == "library" else 1e-6  # cuBLAS gives products back in half
    assert relative_error(out, product(x, weight)) < limit


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("rows_at_once", [1, 4, 9, 1000])
def test_int8_weights_go_to_the_library_in_pieces_that_fit_the_scratch(
    is_gated: bool, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridgen.models.kernels.linear.MAX_DEQUANTIZED", rows_at_once * 76 + 75)
    x, weight = operands(5, is_gated=is_gated)
    weight = (weight * 40).to(torch.int8)
    more: dict[str, Any] = {"bias": torch.randn(len(weight)), "norm": torch.rand(76) + 0.5}
    more["scales"] = torch.rand(len(weight)) * 0.02
    weights = LinearWeights(weight, is_gated=is_gated, epsilon=EPSILON, **more)
    residual = None if is_gated else torch.randn(5, 22)
    wanted = product(x, weight, is_gated=is_gated, residual=residual, **more)
    assert relative_error(run(LIBRARY, x, weights, residual=residual), wanted) < 1e-6


def test_int8_weights_take_scratch_only_where_they_are_written_out() -> None:
    shape = LinearWeights(torch.ones(44, 76, dtype=torch.int8), is_gated=True).shape
    assert scratch_needs(3, shape) == scratch_needs(3, shape, LIBRARY)
    assert scratch_needs(3, shape, LIBRARY) == scratch_needs(3, shape, DOT) + 44 * 76


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # interpreted, bf16 is cut off
def test_dequantized_weights_are_rounded_once(dtype: torch.dtype) -> None:
    weight = torch.randint(-127, 128, (5, 2500), dtype=torch.int8)
    scales = torch.rand(5) * 0.02
    out = torch.full((5, 2500), torch.nan, dtype=dtype)
    dequantize(weight, scales, out)
    assert torch.equal(out, (weight.float() * scales[:, None]).to(dtype))


def test_dequantizing_refuses_operands_that_do_not_fit() -> None:
    weight, out = torch.ones(4, 8, dtype=torch.int8), torch.empty(4, 8)
    for wrong in ((weight, torch.ones(3), out), (weight, torch.ones(4), out[:, :7])):
        with pytest.raises(InternalError, match="dequantizing"):
            dequantize(*wrong)


def test_a_norm_of_large_halves_is_not_made_on_the_way_to_the_product() -> None:
    x, weight = (t.half() for t in operands(2))
    x[:, 3] = 6e4
    norm = torch.full((76,), 2.0).half()
    out = run(NORMED, x, LinearWeights(weight, norm=norm, epsilon=EPSILON))
    assert relative_error(out, product(x, weight, norm=norm)) < 1e-3


@pytest.mark.parametrize("choice", [DOT, SPLIT, EARLY, LIBRARY])
def test_the_residual_may_be_the_result(choice: LinearChoice) -> None:
    x, weight = operands(2)
    residual = torch.randn(2, 22)
    wanted = product(x, weight, residual=residual)
    floats, counters = linear_needs(2, LinearWeights(weight).shape, choice)
    workspace = Workspace("cpu", num_floats=floats, num_counters=counters)
    for wide in (x, torch.nn.functional.pad(x, (0, 8))[:, :76]):  # rows further apart
        out = residual.clone()
        weights = LinearWeights(weight)
        linear(wide, weights, out, workspace=workspace, residual=out, choice=choice)
        assert relative_error(out, wanted) < 1e-6


def test_a_token_gives_the_same_in_any_company() -> None:
    x, weight = operands(7)
    whole = run(SPLIT, x, LinearWeights(weight))
    assert torch.equal(run(SPLIT, x[3:5], LinearWeights(weight)), whole[3:5])


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"scales": torch.ones(22)}, "scales"),
        ({"bias": torch.ones(21)}, "bias"),
        ({"norm": torch.ones(75)}, "norm"),
        ({"weight": torch.ones(22, 77)}, "x"),
        ({"weight": torch.ones(22, 76).half()}, "dtype"),
    ],
)
def test_operands_that_do_not_fit_are_refused(wrong: dict[str, torch.Tensor], name: str) -> None:
    x, weight = operands(2)
    weights = LinearWeights(**{"weight": weight, **wrong})
    with pytest.raises(InternalError, match=name):
        run(DOT, x, weights)


def test_partial_sums_that_do_not_fit_are_refused() -> None:
    x, weight = operands(2)
    workspace = Workspace("cpu", num_floats=8, num_counters=8)
    with pytest.raises(InternalError, match="workspace"):
        linear(x, LinearWeights(weight), torch.empty(2, 22), workspace=workspace, choice=SPLIT)


def test_a_kernel_refuses_what_it_cannot_make() -> None:
    x, weight = operands(2)
    with pytest.raises(InternalError, match="one token"):
        run(GEMV, x, LinearWeights(weight))
