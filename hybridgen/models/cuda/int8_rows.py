"""Rows of weights as INT8 with a float32 scale each."""

from __future__ import annotations

import torch

#: Largest magnitude of a quantized weight; -128 stays unused, so that both signs reach as far.
LARGEST = 127
#: Weights that are worked on at once in float32: what quantizing needs beside its operands.
_CHUNK = 1 << 23


def quantize_rows(matrix: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
    """``out`` · ``scales`` ≈ ``matrix``: symmetric, rounded to the nearest, ties to even.

    A row's scale is its largest magnitude / 127, so an error is at most half of that.

    Args:
        matrix: [num_rows, size], any float dtype, finite.
        out: int8[num_rows, size].
        scales: float32[num_rows].
    """
    num_rows = max(1, _CHUNK // matrix.shape[1])
    for start in range(0, len(matrix), num_rows):
        rows = slice(start, start + num_rows)
        wide = matrix[rows].float()
        # The bound keeps a row of zeros from 0 / 0.
        scale = (wide.abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        scales[rows] = scale
        out[rows] = (wide / scale[:, None]).round_().to(torch.int8)


def dequantize_rows(
    values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """[num_rows, size] of ``dtype``: the products in float32, rounded once."""
    return (values.float() * scales[:, None]).to(dtype)
