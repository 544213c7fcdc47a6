"""Norm, embedding and gate: kernels that make one row at a time."""

from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.embedding import gather_embedding
from hybridgen.models.kernels.gate import apply_gate
from hybridgen.models.kernels.norm import rms_norm
from hybridgen.models.reference import rms_norm as reference_norm
from hybridgen.models.reference import swiglu
from tests.models.kernels.oracles import relative_error


@pytest.mark.parametrize("size", [1, 37, 64, 1030])
def test_the_norm_equals_the_oracle(size: int) -> None:
    x = torch.randn(3, size + 5)[:, :size] * 10
    weight = torch.rand(size) + 0.5
    out = torch.full((3, size), torch.nan)
    rms_norm(x, weight, out, epsilon=1e-5)
    assert relative_error(out, reference_norm(x.double(), weight.double(), 1e-5)) < 1e-6


def test_the_norm_may_be_in_place() -> None:
    x, weight = torch.randn(2, 40), torch.ones(40)
    wanted = reference_norm(x.double(), weight.double(), 1e-5)
    rms_norm(x, weight, x, epsilon=1e-5)
    assert relative_error(x, wanted) < 1e-6


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_embedding_copies_rows(dtype: torch.dtype) -> None:
    table, ids = torch.randn(9, 1100).half(), torch.tensor([8, 0, 3], dtype=dtype)
    out = torch.empty(3, 1100)
    gather_embedding(ids, table, out)
    assert torch.equal(out, table[ids.long()].float())


def test_ids_outside_the_embedding_are_clamped() -> None:
    table = torch.randn(4, 8)
    out = torch.empty(2, 8)
    gather_embedding(torch.tensor([-1, 4]), table, out)
    assert torch.equal(out, table[[0, 3]])


def test_the_gate_equals_the_oracle() -> None:
    both, bias = torch.randn(2, 2 * 1030), torch.randn(2 * 1030)
    out = torch.full((2, 1030), torch.nan)
    apply_gate(both, out, bias=bias)
    assert relative_error(out, swiglu(*(both + bias).double().chunk(2, -1))) < 1e-6


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InternalError, match="norm"):
        rms_norm(torch.zeros(2, 8), torch.zeros(7), torch.zeros(2, 8), epsilon=1e-5)
    with pytest.raises(InternalError, match="embedding"):
        gather_embedding(torch.zeros(2, dtype=torch.int32), torch.zeros(4, 9), torch.zeros(2, 8))
    with pytest.raises(InternalError, match="gate"):
        apply_gate(torch.zeros(2, 15), torch.zeros(2, 8))
