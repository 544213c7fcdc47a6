"""Attention over two sets of keys, merged, against attention over both in float64."""

from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.merge_attention import merge_attention
from tests.models.kernels.oracles import relative_error


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, heads, d] and [heads, n], in float64."""
    scores = torch.einsum("nhd,mhd->hnm", query.double(), keys.double())
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), values.double()), scores.logsumexp(-1)


@pytest.mark.parametrize(("num_rows", "num_heads", "head_dim"), [(1, 1, 16), (35, 3, 24)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])  # either part may count for nothing
def test_merged_parts_equal_the_whole(
    num_rows: int, num_heads: int, head_dim: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    query = torch.randn(num_rows, num_heads, head_dim, generator=generator) * scale
    keys, values = (torch.randn(50, num_heads, head_dim, generator=generator) for _ in range(2))
    wanted, wanted_sums = attend(query, keys, values)
    # Views of something wider, as chunks of a piece are.
    out = torch.full((num_rows + 9, num_heads, head_dim), torch.nan)
    sums = torch.full((num_heads, num_rows + 9), torch.nan)
    part, part_sums = torch.full_like(out, torch.nan), torch.full_like(sums, torch.nan)
    rows, other = slice(4, 4 + num_rows), slice(7, 7 + num_rows)
    out[rows], sums[:, rows] = attend(query, keys[:20], values[:20])
    part[other], part_sums[:, other] = attend(query, keys[20:], values[20:])
    merge_attention(out[rows], sums[:, rows], part[other], part_sums[:, other])
    assert relative_error(out[rows], wanted) < 1e-6
    assert relative_error(sums[:, rows], wanted_sums) < 1e-6
    for others in (slice(0, 4), slice(4 + num_rows, None)):
        assert out[others].isnan().all()
        assert sums[:, others].isnan().all()


def test_parts_that_do_not_fit_are_refused() -> None:
    out, sums = torch.zeros(4, 2, 16), torch.zeros(2, 4)
    for wrong in (
        (out, sums, out[:3], sums),
        (out, sums.T, out, sums),
        (out, sums, out, sums.double()),
    ):
        with pytest.raises(InternalError, match="do not fit"):
            merge_attention(*wrong)
