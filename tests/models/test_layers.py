from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models import reference
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.layers import (
    Epilogue,
    PackedMatrix,
    gather,
    linear,
    panel_bias,
    rms_norm,
)
from tests.models.tiny_model import relative_error

DTYPES = [torch.float32, torch.bfloat16]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_outputs", "depth"), [(32, 16), (33, 7), (100, 65), (15, 200)])
def test_linear_equals_the_float64_product(dtype, num_outputs, depth):
    pool = ComputePool(2)
    weight = randn(num_outputs, depth).to(dtype)
    bias = randn(num_outputs, seed=1)
    matrix = PackedMatrix(pool, weight)
    for num_rows in (1, 2, 5, 12, 13, 40):
        x = randn(num_rows, depth, seed=num_rows)
        expected = x.double() @ weight.double().T
        found = linear(pool, x, matrix, torch.empty(num_rows, num_outputs))
        assert relative_error(found, expected) < 2e-6
        found = linear(
            pool,
            x,
            matrix,
            x.new_ones(num_rows, num_outputs),
            bias=panel_bias(bias),
            epilogue=Epilogue.ADD,
        )
        assert relative_error(found, expected + bias + 1) < 2e-6
    pool.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_outputs", [16, 40, 7])
@pytest.mark.parametrize(
    ("epilogue", "gated"),
    [(Epilogue.SWIGLU, reference.swiglu), (Epilogue.GEGLU, reference.geglu)],
)
def test_gates_equal_the_reference(epilogue, gated, num_outputs, dtype):
    pool = ComputePool(2)
    gate, up = randn(num_outputs, 48).to(dtype), randn(num_outputs, 48, seed=1).to(dtype)
    biases = randn(num_outputs, seed=2), randn(num_outputs, seed=3)
    x = 3 * randn(14, 48, seed=4)
    found = linear(
        pool,
        x,
        PackedMatrix(pool, gate, up),
        torch.empty(14, num_outputs),
        bias=panel_bias(*biases),
        epilogue=epilogue,
    )
    expected = gated(
        x.double() @ gate.double().T + biases[0], x.double() @ up.double().T + biases[1]
    )
    assert relative_error(found, expected) < 2e-6
    pool.close()


def capped(values: torch.Tensor, cap: float) -> torch.Tensor:
    pool = ComputePool(1)
    one = PackedMatrix(pool, torch.ones(1, 1))
    found = linear(pool, values.view(-1, 1), one, torch.empty(len(values), 1), softcap=cap)
    pool.close()
    return found[:, 0]


@pytest.mark.usefixtures("kernels")
def test_the_cap_equals_the_reference_at_every_size():
    values = torch.logspace(-6, 3, 500)
    values = torch.cat([values, -values])
    expected = reference.softcap(values.double(), 5.0)
    assert bool(((capped(values, 5.0) - expected).abs() <= 5e-7 * expected.abs()).all())


@pytest.mark.usefixtures("kernels")
def test_the_cap_bounds_infinity_and_keeps_what_is_no_number():
    found = capped(torch.tensor([torch.inf, -torch.inf, 3e38, 0.0, torch.nan]), 2.0)
    assert found[:4].tolist() == [2.0, -2.0, 2.0, 0.0]
    assert bool(found[4].isnan())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_gives_the_same_bits_alone_and_in_any_batch(dtype):
    pool = ComputePool(2)
    matrix = PackedMatrix(pool, randn(96, 130).to(dtype))
    x = randn(60, 130, seed=1)
    alone = torch.cat([linear(pool, row[None], matrix, torch.empty(1, 96)) for row in x])
    for num_rows in (2, 7, 12, 16, 25, 60):
        found = linear(pool, x[:num_rows], matrix, torch.empty(num_rows, 96))
        assert torch.equal(found, alone[:num_rows])
    pool.close()


def test_linear_gives_the_same_bits_with_any_number_of_threads(pool):
    single = ComputePool(1)
    weight, x = randn(1000, 64), randn(9, 64, seed=1)
    expected = linear(single, x, PackedMatrix(single, weight), torch.empty(9, 1000))
    found = linear(pool, x, PackedMatrix(pool, weight), torch.empty(9, 1000))
    assert torch.equal(found, expected)
    single.close()


def test_linear_writes_only_its_own_columns_of_strided_rows():
    pool = ComputePool(2)
    whole = torch.full((3, 64), 7.0)
    linear(pool, randn(3, 90)[:, :50], PackedMatrix(pool, randn(35, 50)), whole[:, :35])
    assert bool((whole[:, 35:] == 7).all())
    pool.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("epilogue", [Epilogue.SWIGLU, Epilogue.GEGLU])
def test_not_a_number_in_the_input_reaches_the_output(epilogue):
    pool = ComputePool(1)
    x = torch.tensor([[float("nan")] * 16, [1.0] * 16])
    ones = torch.ones(16, 16)
    out = linear(pool, x, PackedMatrix(pool, ones, ones), torch.empty(2, 16), epilogue=epilogue)
    assert bool(out[0].isnan().all())
    assert bool(out[1].isfinite().all())
    pool.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("size", [16, 100, 576, 3])
def test_rms_norm_equals_the_reference(size):
    pool = ComputePool(2)
    x, weight = 5 * randn(9, size), randn(size, seed=1)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5)
    assert relative_error(rms_norm(pool, x, weight, 1e-5), expected) < 1e-6
    pool.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_returns_the_rows_that_were_packed(dtype, pool):
    weight = randn(70, 33).to(dtype)
    ids = torch.tensor([0, 15, 16, 31, 32, 69, 5, 5], dtype=torch.int32)
    matrix = PackedMatrix(pool, weight)
    assert torch.equal(gather(pool, matrix, ids), weight[ids].float())
    assert torch.equal(gather(pool, matrix, ids, scale=2.5), 2.5 * weight[ids].float())


def test_arguments_that_do_not_fit_are_refused():
    pool = ComputePool(1)
    matrix = PackedMatrix(pool, randn(32, 16))
    out = torch.empty(2, 32)
    with pytest.raises(InternalError, match="x is not"):
        linear(pool, randn(2, 15), matrix, out)
    with pytest.raises(InternalError, match="out is not"):
        linear(pool, randn(3, 16), matrix, out)
    with pytest.raises(InternalError, match="paired"):
        linear(pool, randn(2, 16), matrix, out, epilogue=Epilogue.SWIGLU)
    with pytest.raises(InternalError, match="bias"):
        linear(pool, randn(2, 16), matrix, out, bias=randn(31))
    with pytest.raises(InternalError, match="weight is not"):
        PackedMatrix(pool, randn(32, 16), randn(32, 17))
    with pytest.raises(InternalError, match="row number"):
        gather(pool, matrix, torch.tensor([32], dtype=torch.int32))
    pool.close()
