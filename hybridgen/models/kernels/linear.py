"""The checked door to matrix products: our own kernels for few tokens, cuBLAS for many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton

from hybridgen.errors import InternalError
from hybridgen.models.kernels.dequantize import dequantize
from hybridgen.models.kernels.gate import apply_gate
from hybridgen.models.kernels.gemv import gemv_kernel
from hybridgen.models.kernels.limb_dot import limb_dot_kernel
from hybridgen.models.kernels.limb_gemv import limb_gemv_kernel
from hybridgen.models.kernels.limb_rows import split_rows
from hybridgen.models.kernels.linear_choice import (
    LIMB_GROUP,
    MAX_DEQUANTIZED,
    LinearChoice,
    LinearShape,
    choose_linear,
)
from hybridgen.models.kernels.norm import rms_norm
from hybridgen.models.kernels.soft_cap import cap_rows
from hybridgen.models.kernels.split_dot import split_dot_kernel
from hybridgen.models.kernels.workspace import Workspace

_LIBRARY = LinearChoice("library")


class LinearWeights(NamedTuple):
    """One matrix product of the model, with what always goes with it.

    Attributes:
        weight: [num_rows, size], contiguous; int8, bf16, fp16 or float32. Gated: [2 num_rows,
            size], gates first, and the result is silu(gates) · ups.
        scales: float32 per weight row, for int8.
        bias: per weight row.
        is_gated: see ``weight``.
        norm: [size], weight of a norm of x before the product.
        epsilon: of both norms.
        is_gelu: gates go through gelu (by tanh) instead of silu.
        post_norm: [num_rows], weight of a norm of the product, before the residual is added.
        softcap: c > 0: results y become c · tanh(y / c); not with a residual.
    """

    weight: torch.Tensor
    scales: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    is_gated: bool = False
    norm: torch.Tensor | None = None
    epsilon: float = 1e-5
    is_gelu: bool = False
    post_norm: torch.Tensor | None = None
    softcap: float = 0.0

    @property
    def shape(self) -> LinearShape:
        """What the choice of kernel depends on, beside the number of tokens."""
        rows, size = self.weight.shape
        bits = 8 * self.weight.element_size()
        return LinearShape(rows // 2 if self.is_gated else rows, size, self.is_gated, bits)


def linear(
    x: torch.Tensor,
    weights: LinearWeights,
    out: torch.Tensor,
    *,
    workspace: Workspace,
    residual: torch.Tensor | None = None,
    choice: LinearChoice | None = None,
    is_chained: bool = False,
) -> None:
    """Out = (residual +) gate(norm(x) · Wᵀ · scales + bias), summed in float32, rounded once.

    Must move num_rows · size weights (twice that if gated) once. Deterministic. With a norm behind
    the product, the product is rounded to the dtype of x, and a second kernel does the rest.

    Args:
        x: [num_tokens, size] in the dtype of the weights (any float dtype for int8); rows may be
            further apart than they are long.
        weights: the matrix.
        out: [num_tokens, num_rows], any float dtype; not ``x``.
        workspace: of this stream; ``linear_needs`` says how much.
        residual: [num_tokens, num_rows], any float dtype; may be ``out``.
        choice: ``choose_linear`` by default.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: operands, choice or workspace do not fit.
    """
    _check(x, weights, out, residual)
    if weights.post_norm is not None:
        product = workspace.product_rows(len(x), weights.shape.num_rows, x.dtype)
        plain = weights._replace(post_norm=None)
        linear(x, plain, product, workspace=workspace, choice=choice, is_chained=is_chained)
        rms_norm(
            product, weights.post_norm, out,
            epsilon=weights.epsilon, residual=residual, is_chained=is_chained,
        )  # fmt: skip
        return
    choice = choice or choose_linear(len(x), weights.shape)
    if choice.form == "library":
        _by_library(x, weights, out, workspace, residual, is_chained)
        return
    if choice.form == "limb_dot":
        _by_limb_dot(x, weights, out, workspace, residual, choice, is_chained)
        return
    if weights.norm is not None and not _fuses_norm(choice, x.dtype):
        normed = workspace.rows(len(x), x.shape[1], x.dtype)
        rms_norm(x, weights.norm, normed, epsilon=weights.epsilon, is_chained=is_chained)
        x, weights = normed, weights._replace(norm=None)
    if choice.form == "gemv":
        _by_gemv(x, weights, out, residual, choice, is_chained)
    elif choice.form == "limb_gemv":
        _by_limb_gemv(x, weights, out, residual, choice, is_chained)
    else:
        _by_dot(x, weights, out, workspace, residual, choice, is_chained)


def linear_needs(num_tokens: int, shape: LinearShape, choice: LinearChoice) -> tuple[int, int]:
    """Floats and counters of the workspace; scratch rows are ``scratch_needs``."""
    groups = triton.cdiv(shape.size, choice.block_k) if choice.form == "limb_dot" else 0
    num_scales = num_tokens * groups
    if choice.form not in ("dot", "limb_dot") or choice.splits == 1:
        return num_scales, 0
    tiles = triton.cdiv(shape.num_rows, choice.block_n) * triton.cdiv(num_tokens, choice.block_b)
    area = choice.block_n * (2 if shape.is_gated else 1) + (1 if choice.fuses_norm else 0)
    return num_scales + tiles * choice.splits * area * choice.block_b, tiles


def scratch_needs(num_tokens: int, shape: LinearShape, choice: LinearChoice = _LIBRARY) -> int:
    """Elements of scratch for ``choice``; without one, as many as are enough for any."""
    num_rows = shape.num_rows * (2 if shape.is_gated else 1)
    elements = num_tokens * (shape.size + (num_rows if shape.is_gated else 0))
    if shape.weight_bits == 8 and choice.form == "library":
        elements += _rows_at_once(num_rows, shape.size) * shape.size
    return elements


def _rows_at_once(num_rows: int, size: int) -> int:
    """Rows of INT8 weights that are dequantized together."""
    return min(num_rows, max(1, MAX_DEQUANTIZED // size))


def _fuses_norm(choice: LinearChoice, dtype: torch.dtype) -> bool:
    # On the matrix units x is multiplied by the norm's weights before it is made small, which
    # half precision might not hold.
    return choice.fuses_norm and not (choice.form == "dot" and dtype == torch.float16)


def _by_gemv(
    x: torch.Tensor,
    weights: LinearWeights,
    out: torch.Tensor,
    residual: torch.Tensor | None,
    choice: LinearChoice,
    is_chained: bool,
) -> None:
    if len(x) != 1:
        raise InternalError("this kernel takes one token", value=len(x))
    shape = weights.shape
    gemv_kernel[(triton.cdiv(shape.num_rows, choice.block_n),)](
        x, weights.weight, out, weights.scales, weights.norm, residual, weights.bias,
        shape.num_rows, weights.epsilon, weights.softcap or None,
        SIZE=shape.size, IS_GATED=shape.is_gated, IS_GELU=weights.is_gelu,
        BLOCK_N=choice.block_n, BLOCK_K=choice.block_k,
        STAGES=choice.num_stages, UNROLL=choice.unroll,
        IS_CHAINED=is_chained, IS_COMPILED=not triton.knobs.runtime.interpret,
        num_warps=choice.num_warps, launch_pdl=is_chained,
    )  # fmt: skip


def _by_limb_gemv(
    x: torch.Tensor,
    weights: LinearWeights,
    out: torch.Tensor,
    residual: torch.Tensor | None,
    choice: LinearChoice,
    is_chained: bool,
) -> None:
    shape = weights.shape
    if len(x) != 1 or shape.weight_bits != 8 or shape.size % LIMB_GROUP:
        raise InternalError(
            "this kernel takes one token and INT8 weights in whole groups",
            value=f"{len(x)} tokens, {shape}",
        )
    limb_gemv_kernel[(triton.cdiv(shape.num_rows, choice.block_n),)](
        x, weights.weight.view(torch.int32), out, weights.scales, residual, weights.bias,
        shape.num_rows, weights.softcap or None,
        SIZE=shape.size, IS_GATED=shape.is_gated, IS_GELU=weights.is_gelu,
        BLOCK_N=choice.block_n, BLOCK_K=choice.block_k, STAGES=choice.num_stages,
        IS_CHAINED=is_chained, IS_COMPILED=not triton.knobs.runtime.interpret,
        num_warps=choice.num_warps, launch_pdl=is_chained,
    )  # fmt: skip


def _by_dot(
    x: torch.Tensor,
    weights: LinearWeights,
    out: torch.Tensor,
    workspace: Workspace,
    residual: torch.Tensor | None,
    choice: LinearChoice,
    is_chained: bool,
) -> None:
    shape = weights.shape
    floats, counters = linear_needs(len(x), shape, choice)
    workspace.require(num_floats=floats, num_counters=counters)
    grid = (
        triton.cdiv(shape.num_rows, choice.block_n),
        choice.splits,
        triton.cdiv(len(x), choice.block_b),
    )
    split_dot_kernel[grid](
        x, weights.weight, out, weights.scales, weights.norm, residual, weights.bias,
        workspace.partials, workspace.counters,
        len(x), shape.num_rows, shape.size,
        x.stride(0), out.stride(0), 0 if residual is None else residual.stride(0),
        weights.epsilon, weights.softcap or None, choice.ahead,
        IS_GATED=shape.is_gated, IS_GELU=weights.is_gelu,
        IS_EVEN=shape.size % choice.block_k == 0, SPLITS=choice.splits,
        BLOCK_N=choice.block_n, BLOCK_K=choice.block_k, BLOCK_B=choice.block_b,
        IS_EARLY=choice.is_early,
        IS_CHAINED=is_chained, IS_COMPILED=not triton.knobs.runtime.interpret,
        num_warps=choice.num_warps, num_stages=choice.num_stages, launch_pdl=is_chained,
    )  # fmt: skip


def _by_limb_dot(
    x: torch.Tensor,
    weights: LinearWeights,
    out: torch.Tensor,
    workspace: Workspace,
    residual: torch.Tensor | None,
    choice: LinearChoice,
    is_chained: bool,
) -> None:
    """The limbs are made by a kernel of their own, in the place of a norm if there is one."""
    shape, num_tokens = weights.shape, len(x)
    if shape.weight_bits != 8:
        raise InternalError("this kernel takes INT8 weights", value=str(shape))
    floats, counters = linear_needs(num_tokens, shape, choice)
    workspace.require(num_floats=floats, num_counters=counters)
    num_scales = triton.cdiv(shape.size, choice.block_k) * num_tokens
    scales, partials = workspace.partials[:num_scales], workspace.partials[num_scales:]
    limbs = workspace.rows(num_tokens, shape.size, x.dtype).view(torch.int8)
    split_rows(
        x, limbs, scales,
        group=choice.block_k, norm=weights.norm, epsilon=weights.epsilon, is_chained=is_chained,
    )  # fmt: skip
    grid = (
        triton.cdiv(shape.num_rows, choice.block_n),
        choice.splits,
        triton.cdiv(num_tokens, choice.block_b),
    )
    limb_dot_kernel[grid](
        limbs, scales, weights.weight, out, weights.scales, residual, weights.bias,
        partials, workspace.counters, num_tokens, shape.num_rows, shape.size,
        out.stride(0), 0 if residual is None else residual.stride(0),
        weights.softcap or None, choice.ahead,
        IS_GATED=shape.is_gated, IS_GELU=weights.is_gelu,
        IS_EVEN=shape.size % choice.block_k == 0, SPLITS=choice.splits,
        BLOCK_N=choice.block_n, BLOCK_K=choice.block_k, BLOCK_B=choice.block_b,
        STAGES=choice.num_stages, IS_CHAINED=is_chained,
        num_warps=choice.num_warps, num_stages=choice.num_stages, launch_pdl=is_chained,
    )  # fmt: skip


def _by_library(
    x: torch.Tensor,
    weights: LinearWeights,
    out: torch.Tensor,
    workspace: Workspace,
    residual: torch.Tensor | None,
    is_chained: bool,
) -> None:
    """The same by cuBLAS, which rounds the products to the dtype of x before what follows."""
    shape = weights.shape
    taken = 0
    if weights.norm is not None:
        normed = workspace.rows(len(x), x.shape[1], x.dtype)
        rms_norm(x, weights.norm, normed, epsilon=weights.epsilon, is_chained=is_chained)
        x, taken = normed, normed.numel()
    products = out
    if weights.is_gated:
        wide = workspace.rows(len(x), taken // len(x) + 2 * shape.num_rows, x.dtype)
        products, taken = wide.view(-1)[taken:].view(len(x), -1), wide.numel()
    start = residual if residual is not None and residual.dtype == out.dtype == x.dtype else None
    for rows, matrix in _matrices(weights, workspace, taken, x.dtype):
        part = products[:, rows]
        if start is None:
            _mm_into(x, matrix, part)
        else:  # in place torch is spared a copy
            torch.addmm(part if start is out else start[:, rows], x, matrix.T, out=part)
    if weights.is_gated:
        apply_gate(products, out, bias=weights.bias, is_gelu=weights.is_gelu)
        return
    for addend in (weights.bias, residual if start is None else None):
        if addend is not None:
            out += addend
    if weights.softcap:
        cap_rows(out, weights.softcap)


def _matrices(
    weights: LinearWeights, workspace: Workspace, taken: int, dtype: torch.dtype
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Rows and the weights in them in ``dtype``; INT8 weights in the space behind ``taken``.

    A matrix is gone when the next is asked for: the kernels behind it in the stream come first.
    """
    if weights.scales is None:
        yield slice(None), weights.weight
        return
    num_rows, size = weights.weight.shape
    at_once = _rows_at_once(num_rows, size)
    space = workspace.rows(1, taken + at_once * size, dtype)[0, taken:]
    for begin in range(0, num_rows, at_once):
        rows = slice(begin, min(begin + at_once, num_rows))
        matrix = space[: (rows.stop - begin) * size].view(-1, size)
        dequantize(weights.weight[rows], weights.scales[rows], matrix)
        yield rows, matrix


def _mm_into(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    if out.dtype == x.dtype:
        torch.mm(x, weight.T, out=out)
    elif out.dtype == torch.float32 and x.is_cuda:
        torch.mm(x, weight.T, out_dtype=torch.float32, out=out)
    else:
        out.copy_(x @ weight.T)


def _check(
    x: torch.Tensor, weights: LinearWeights, out: torch.Tensor, residual: torch.Tensor | None
) -> None:
    shape = weights.shape
    wanted = (len(x), shape.num_rows)
    per_row = (weights.weight.shape[0],)
    problems = {
        "x": x.shape != (len(x), shape.size) or x.stride(1) != 1,
        "weight": not weights.weight.is_contiguous(),
        "dtype": weights.weight.dtype not in (x.dtype, torch.int8),
        "scales": (weights.scales is None) == (weights.weight.dtype == torch.int8)
        or (weights.scales is not None and weights.scales.shape != per_row),
        "bias": weights.bias is not None and weights.bias.shape != per_row,
        "norm": weights.norm is not None and weights.norm.shape != (shape.size,),
        "out": out.shape != wanted or out.stride(1) != 1,
        "residual": residual is not None and (residual.shape != wanted or residual.stride(1) != 1),
        "post_norm": weights.post_norm is not None and weights.post_norm.shape != wanted[1:],
        "residual of a gate": residual is not None and weights.is_gated,
        "softcap": weights.softcap > 0
        and (residual is not None or weights.is_gated or weights.post_norm is not None),
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("operands of a matrix product do not fit", value=", ".join(wrong))
