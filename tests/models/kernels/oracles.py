"""What the kernels must compute, in float64 and without paging."""

from __future__ import annotations

import torch

from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.reference import attention, geglu, rms_norm, rotate, softcap, swiglu

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
    is_gelu: bool = False,
    cap: float = 0.0,
    post_norm: torch.Tensor | None = None,
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
        result = (geglu if is_gelu else swiglu)(*result.chunk(2, -1))
    result = softcap(result, cap)
    if post_norm is not None:
        result = rms_norm(result, post_norm.double(), EPSILON)
    return result if residual is None else result + residual.double()


def rotated_heads(
    qkv: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    position: int,
    sizes: list[int],
    options: HeadOptions = PLAIN_HEADS,
) -> list[torch.Tensor]:
    """Queries and keys normed and rotated, values as they are, [heads, d] each, of one token."""
    heads = list(qkv.double().view(1, sum(sizes), -1).split(sizes, 1))
    cos, sin = (table[position : position + 1].double() for table in rope)
    for index, norm in enumerate((options.q_norm, options.k_norm)):
        if norm is not None:
            heads[index] = rms_norm(heads[index], norm.double(), options.epsilon)
        heads[index] = rotate(heads[index], cos, sin)
    return [part[0] for part in heads]


def attended(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    options: HeadOptions = PLAIN_HEADS,
) -> torch.Tensor:
    """Attention of one token, query [heads, head_dim], to keys and values [m, kv_heads, d]."""
    return attention(
        query[None],
        keys.double(),
        values.double(),
        scale=options.scale,
        cap=options.softcap,
        window=options.window,
    )[0].flatten()
