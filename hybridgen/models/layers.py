"""Packed weights and the row-wise operations on float32 activations.

These are the checked doors to single kernels, for loading, tests and tools; a forward pass goes
through all of them in one native call (cpu_model.py).
"""

from __future__ import annotations

from enum import IntEnum

import torch

from hybridgen.errors import InternalError
from hybridgen.models import _native
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.records import (
    GatherRecord,
    LinearRecord,
    NormRecord,
    PackRecord,
    encode_record,
)

#: Outputs of a weight panel, and of its half (HG_PANEL, HG_HALF of ops.h).
PANEL = 32
HALF = 16
#: enum hg_dtype of ops.h.
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}


class Epilogue(IntEnum):
    """What happens to the sums of a product (enum hg_epilogue of ops.h)."""

    STORE = 0
    ADD = 1
    SWIGLU = 2
    GEGLU = 3

    @property
    def is_gated(self) -> bool:
        """Whether the product is of gates and ups, in paired panels."""
        return self in (Epilogue.SWIGLU, Epilogue.GEGLU)


class PackedMatrix:
    """A weight matrix in panels: [panel, depth, 32 outputs].

    Attributes:
        num_outputs: columns of the product.
        depth: columns of its input.
        dtype: torch.float32 or torch.bfloat16.
        is_paired: each panel holds 16 gate and 16 up outputs, for gated epilogues.
    """

    def __init__(
        self,
        pool: ComputePool,
        weight: torch.Tensor,
        paired: torch.Tensor | None = None,
        *,
        panels: torch.Tensor | None = None,
    ) -> None:
        """Pack ``weight`` [num_outputs, depth]; ``paired`` is the up projection, same shape.

        Args:
            pool: does the packing.
            weight: row-major, float32 or bfloat16.
            paired: see above.
            panels: uint8[panel_bytes] that receives the panels; None allocates.

        Raises:
            InternalError: shapes or dtypes do not fit.
        """
        for tensor in (weight, paired):
            if tensor is not None:
                _require(tensor, "weight", weight.shape, weight.dtype)
        self.num_outputs, self.depth = weight.shape
        self.dtype = weight.dtype
        self.is_paired = paired is not None
        num_bytes = panel_bytes(self.num_outputs, self.depth, self.dtype, self.is_paired)
        self.panels = torch.empty(num_bytes, dtype=torch.uint8) if panels is None else panels
        _require(self.panels, "panels", (num_bytes,), torch.uint8)
        record = PackRecord(
            panels=self.panels.data_ptr(),
            first=weight.data_ptr(),
            second=0 if paired is None else paired.data_ptr(),
            num_outputs=self.num_outputs,
            depth=self.depth,
            dtype=DTYPE_CODES[self.dtype],
            is_paired=int(self.is_paired),
        )
        _native.pack(pool.handle, encode_record(record))


def address(tensor: torch.Tensor | None) -> int:
    """Where the elements are, for a record: 0, NULL there, for None."""
    return 0 if tensor is None else tensor.data_ptr()


def panel_bytes(num_outputs: int, depth: int, dtype: torch.dtype, is_paired: bool) -> int:
    """Bytes of the panels of a matrix; a multiple of 64."""
    width = HALF if is_paired else PANEL
    return -(-num_outputs // width) * depth * PANEL * dtype.itemsize


def panel_bias(bias: torch.Tensor, paired: torch.Tensor | None = None) -> torch.Tensor:
    """Biases float32[num_outputs] (two of them: of gate and up) in the panels' order, padded."""
    width = PANEL if paired is None else HALF
    padded = torch.nn.functional.pad(bias.float(), (0, -len(bias) % width)).view(-1, width)
    if paired is not None:
        other = torch.nn.functional.pad(paired.float(), (0, -len(paired) % width))
        padded = torch.cat([padded, other.view(-1, width)], dim=1)
    return padded.reshape(-1).contiguous()


def activation_rows(num_rows: int, size: int) -> torch.Tensor:
    """float32[num_rows, size and some], uninitialised."""
    # Rows start on cache lines but not whole pages apart, where the rows of one tile would
    # compete for the same cache sets.
    return torch.empty(num_rows, -(-size // 16) * 16 + 16)


def linear(
    pool: ComputePool,
    x: torch.Tensor,
    matrix: PackedMatrix,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = Epilogue.STORE,
    softcap: float = 0.0,
) -> torch.Tensor:
    """``out`` [n, num_outputs] from ``x`` [n, depth], both float32; rows may be strided.

    Args:
        pool: does the work.
        x: input.
        matrix: weights; paired if and only if the epilogue is gated.
        out: stored to, added to, or receives the gates' activation · up.
        bias: from ``panel_bias``.
        epilogue: see ``Epilogue``.
        softcap: c > 0: sums s become c · tanh(s / c) before the epilogue.

    Raises:
        InternalError: shapes or dtypes do not fit.
    """
    num_rows = x.shape[0]
    _require_rows(x, "x", (num_rows, matrix.depth))
    _require_rows(out, "out", (num_rows, matrix.num_outputs))
    if matrix.is_paired != epilogue.is_gated:
        raise InternalError("paired weights belong to gated epilogues and to nothing else")
    if bias is not None:
        width = HALF if matrix.is_paired else PANEL
        num_lanes = -(-matrix.num_outputs // width) * PANEL
        _require(bias, "bias", (num_lanes,), torch.float32)
    record = LinearRecord(
        panels=matrix.panels.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        x=x.data_ptr(),
        y=out.data_ptr(),
        x_stride=x.stride(0),
        y_stride=out.stride(0),
        num_rows=num_rows,
        num_outputs=matrix.num_outputs,
        depth=matrix.depth,
        dtype=DTYPE_CODES[matrix.dtype],
        epilogue=int(epilogue),
        softcap=softcap,
    )
    _native.linear(pool.handle, encode_record(record))
    return out


def rms_norm(
    pool: ComputePool, x: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Per row x / sqrt(mean(x²) + epsilon) · weight (Zhang & Sennrich 2019); float32 [n, size]."""
    num_rows, size = x.shape
    _require_rows(x, "x", (num_rows, size))
    _require(weight, "weight", (size,), torch.float32)
    out = torch.empty(num_rows, size)
    record = NormRecord(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        y=out.data_ptr(),
        x_stride=x.stride(0),
        y_stride=size,
        num_rows=num_rows,
        size=size,
        is_added=0,
        epsilon=epsilon,
    )
    _native.norm(pool.handle, encode_record(record))
    return out


def gather(
    pool: ComputePool, matrix: PackedMatrix, ids: torch.Tensor, scale: float = 1.0
) -> torch.Tensor:
    """Rows ``ids`` (int32[n], in range) of the packed matrix, scaled, as float32 [n, depth]."""
    _require(ids, "ids", (len(ids),), torch.int32)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < matrix.num_outputs:
        raise InternalError("a row number is out of range", limit=matrix.num_outputs - 1)
    out = torch.empty(len(ids), matrix.depth)
    record = GatherRecord(
        panels=matrix.panels.data_ptr(),
        ids=ids.data_ptr(),
        y=out.data_ptr(),
        y_stride=matrix.depth,
        num_rows=len(ids),
        depth=matrix.depth,
        dtype=DTYPE_CODES[matrix.dtype],
        scale=scale,
    )
    _native.gather(pool.handle, encode_record(record))
    return out


def _require(tensor: torch.Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if (
        tensor.shape != shape
        or tensor.dtype != dtype
        or not tensor.is_contiguous()
        or tensor.device.type != "cpu"
    ):
        raise InternalError(
            f"{name} is not a contiguous {dtype} tensor on the CPU",
            value=f"{tensor.dtype}{list(tensor.shape)}",
            limit=str(list(shape)),
        )


def _require_rows(tensor: torch.Tensor, name: str, shape: tuple[int, int]) -> None:
    if (
        tensor.shape != shape
        or tensor.dtype != torch.float32
        or tensor.stride(1) != 1
        or tensor.device.type != "cpu"
    ):
        raise InternalError(
            f"{name} is not a float32 matrix on the CPU with its rows in one piece",
            value=f"{tensor.dtype}{list(tensor.shape)}",
            limit=str(list(shape)),
        )
