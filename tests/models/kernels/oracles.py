"""What the kernels must compute, in float64 and without paging."""

from __future__ import annotations

import torch

from hybridgen.models.reference import attention, rms_norm, rotate, swiglu

EPSILON = 1e-5


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """‖out − reference‖ / ‖reference‖; NaN if anything was not written."""
    return float((out.double() - reference).norm() / reference.norm())


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    is_gated: bool = False,
) -> torch.Tensor:
    wide = x.double()
    if norm is not None:
        wide = rms_norm(wide, norm.double(), EPSILON)
    result = wide @ weight.double().T
    if scales is not None:
        result = result * scales.double()
    if bias is not None:
        result = result + bias.double()
    if is_gated:
        result = swiglu(*result.chunk(2, -1))
    return result if residual is None else result + residual.double()


def rotated_heads(
    qkv: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], position: int, sizes: list[int]
) -> list[torch.Tensor]:
    """Queries and keys rotated, values as they are, [heads, head_dim] each, of one token."""
    head_dim = 2 * rope[0].shape[1]
    heads = qkv.double().view(1, -1, head_dim).split(sizes, 1)
    cos, sin = (table[position : position + 1].double() for table in rope)
    return [rotate(heads[0], cos, sin)[0], rotate(heads[1], cos, sin)[0], heads[2][0]]


def attended(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of one token, query [heads, head_dim], to keys and values [m, kv_heads, d]."""
    return attention(query[None], keys.double(), values.double())[0].flatten()
