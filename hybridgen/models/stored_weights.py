"""Weights as a file holds them, some perhaps INT8, under the names of ``weight_names``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from hybridgen.models.cuda.int8_rows import dequantize_rows


class Int8Matrix(NamedTuple):
    """See ``cuda.int8_rows``."""

    values: torch.Tensor
    """int8[…, rows, size]."""
    scales: torch.Tensor
    """float32[…, rows]."""


class StoredWeights(Mapping[str, torch.Tensor]):
    """Float weights by name; INT8 matrices are dequantized each time that they are asked for.

    Args:
        floats: weights that are stored as floats.
        int8: the others, which ``int8`` gives as they are.
        dtype: that these are dequantized to.
    """

    def __init__(
        self,
        floats: Mapping[str, torch.Tensor],
        int8: Mapping[str, Int8Matrix],
        dtype: torch.dtype,
    ) -> None:
        self.int8 = int8
        self._floats = floats
        self._dtype = dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.int8:
            return self._floats[name]
        values, scales = self.int8[name]
        rows = dequantize_rows(values.flatten(0, -2), scales.flatten(), self._dtype)
        return rows.view(values.shape)

    def __iter__(self) -> Iterator[str]:
        yield from self._floats
        yield from self.int8

    def __len__(self) -> int:
        return len(self._floats) + len(self.int8)

    def __contains__(self, name: object) -> bool:
        return name in self._floats or name in self.int8

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every weight; none is touched."""
        floats = {name: tuple(tensor.shape) for name, tensor in self._floats.items()}
        return floats | {name: tuple(matrix.values.shape) for name, matrix in self.int8.items()}
