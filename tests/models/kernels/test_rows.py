"""Norm, embedding and gate: kernels that make one row at a time."""

from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.embedding import gather_embedding
from hybridgen.models.kernels.gate import apply_gate
from hybridgen.models.kernels.norm import rms_norm
from hybridgen.models.kernels.soft_cap import cap_rows
from hybridgen.models.reference import geglu, swiglu
from hybridgen.models.reference import rms_norm as reference_norm
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


def test_what_is_normed_may_be_added_to_a_residual() -> None:
    x, weight, hidden = torch.randn(3, 70), torch.rand(70) + 0.5, torch.randn(3, 75)[:, :70]
    wanted = hidden.double() + reference_norm(x.double(), weight.double(), 1e-5)
    rms_norm(x, weight, hidden, epsilon=1e-5, residual=hidden)
    assert relative_error(hidden, wanted) < 1e-6


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_embedding_copies_rows(dtype: torch.dtype) -> None:
    table, ids = torch.randn(9, 1100).half(), torch.tensor([8, 0, 3], dtype=dtype)
    out = torch.empty(3, 1100)
    gather_embedding(ids, table, out)
    assert torch.equal(out, table[ids.long()].float())


def test_the_embedding_may_be_scaled() -> None:
    table, ids = torch.randn(9, 1100).half(), torch.tensor([8, 0, 3])
    out = torch.empty(3, 1100)
    gather_embedding(ids, table, out, scale=22.5)
    assert torch.equal(out, table[ids].float() * 22.5)


def test_ids_outside_the_embedding_are_clamped() -> None:
    table = torch.randn(4, 8)
    out = torch.empty(2, 8)
    gather_embedding(torch.tensor([-1, 4]), table, out)
    assert torch.equal(out, table[[0, 3]])


@pytest.mark.parametrize("is_gelu", [False, True])
def test_the_gate_equals_the_oracle(is_gelu: bool) -> None:
    both, bias = torch.randn(2, 2 * 1030), torch.randn(2 * 1030)
    out = torch.full((2, 1030), torch.nan)
    apply_gate(both, out, bias=bias, is_gelu=is_gelu)
    gates, ups = (both + bias).double().chunk(2, -1)
    assert relative_error(out, (geglu if is_gelu else swiglu)(gates, ups)) < 1e-6


def test_gates_and_caps_hold_for_huge_numbers() -> None:
    gates = torch.tensor([[-1e4, -90.0, 90.0, 1e4]])
    out = torch.empty(1, 4)
    apply_gate(torch.cat([gates, torch.ones(1, 4)], 1), out, is_gelu=True)
    assert torch.allclose(out, gates.clamp(min=0.0))
    cap_rows(gates, 30.0)
    assert torch.allclose(gates, 30.0 * torch.tensor([[-1.0, -0.99505, 0.99505, 1.0]]))
    lost = torch.full((1, 2), torch.nan)
    cap_rows(lost, 30.0)
    assert lost.isnan().all()


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InternalError, match="norm"):
        rms_norm(torch.zeros(2, 8), torch.zeros(7), torch.zeros(2, 8), epsilon=1e-5)
    with pytest.raises(InternalError, match="embedding"):
        gather_embedding(torch.zeros(2, dtype=torch.int32), torch.zeros(4, 9), torch.zeros(2, 8))
    with pytest.raises(InternalError, match="gate"):
        apply_gate(torch.zeros(2, 15), torch.zeros(2, 8))
    rows = torch.zeros(2, 8)
    with pytest.raises(InternalError, match="norm"):
        rms_norm(rows, torch.zeros(8), rows, epsilon=1e-5, residual=torch.zeros(2, 9))
