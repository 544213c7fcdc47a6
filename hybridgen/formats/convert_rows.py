"""Stored rows of any element type → float rows of the wanted one, or INT8 with a scale per row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.hybridgen_file import DtypeName
from hybridgen.formats.stored_rows import Bytes, RowReader, StoredRows
from hybridgen.models import _native
from hybridgen.models.cuda.int8_rows import dequantize_rows

TORCH_DTYPES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
#: Elements that are worked on at once: they fit a core's own cache.
CHUNK_ELEMENTS = 1 << 19

_FLOATS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
#: What the kernels read; the rest is left to the gguf library, which is much slower.
NATIVE = frozenset(
    (
        *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    )
)


def chunks(rows: StoredRows) -> Iterator[tuple[int, int]]:
    """First and last row of pieces of ``rows``: whole heads where their rows are permuted."""
    unit = rows.num_rows // rows.permuted_heads if rows.permuted_heads else 1
    step = unit * max(1, CHUNK_ELEMENTS // (unit * rows.row_size))
    for begin in range(0, rows.num_rows, step):
        yield begin, min(begin + step, rows.num_rows)


def read_floats(
    reader: RowReader, rows: StoredRows, begin: int, end: int, dtype: torch.dtype
) -> torch.Tensor:
    """Rows ``begin`` to ``end`` as [rows, row_size] of ``dtype``, in rotate-half order.

    Raises:
        BadModelFile: an element is not finite, or the file cannot be read.
        UnsupportedModel: elements do not fit ``dtype``.
    """
    element, data = _readable(reader, rows, begin, end)
    result = torch.empty(end - begin, rows.row_size, dtype=dtype)
    largest = _native.convert(element, data, _FLOATS[dtype], result.view(torch.uint8).numpy())
    if not torch.tensor(largest).to(dtype).isfinite():
        raise _not_finite(rows, dtype, is_in_source=not math.isfinite(largest))
    if rows.permuted_heads:
        return unpermute(result, rows.permuted_heads * (end - begin) // rows.num_rows)
    return result


def unpermute(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of q or k from GGUF's interleaved order to rotate-half order.

    Per head of d rows, GGUF stores row i of the first half at 2i and of the second at 2i + 1.

    Args:
        rows: [num_heads * d, n].
        num_heads: heads in ``rows``.
    """
    return rows.view(num_heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _not_finite(rows: StoredRows, dtype: torch.dtype, *, is_in_source: bool) -> Exception:
    if is_in_source:
        return BadModelFile(
            f"tensor {rows.name} has elements that are not finite",
            field=rows.name,
            file=str(rows.path),
            remedy="The file is damaged; fetch or convert it again",
        )
    return UnsupportedModel(
        f"elements of tensor {rows.name} are too large for this dtype",
        tensor=rows.name,
        value=str(dtype).removeprefix("torch."),
        remedy="Use bfloat16 or float32",
        file=str(rows.path),
    )


def _readable(
    reader: RowReader, rows: StoredRows, begin: int, end: int
) -> tuple[str, npt.NDArray[Any]]:
    """The rows as elements that kernels read, and the name of these."""
    data = reader.read(rows, begin, end)
    if rows.scales_start is not None:
        values = torch.from_numpy(data).view(torch.int8)
        scales = torch.from_numpy(reader.read_scales(rows, begin, end))
        return "F32", dequantize_rows(values, scales).numpy()
    if rows.element.name in NATIVE:
        return rows.element.name, data
    return "F32", _dequantized(rows, data)


def _dequantized(rows: StoredRows, data: Bytes) -> npt.NDArray[np.float32]:
    """Values of whole rows."""
    import gguf  # noqa: PLC0415  slow to import, and only few files need it

    kind = gguf.GGMLQuantizationType[rows.element.name]
    with np.errstate(over="ignore", invalid="ignore"):
        values = gguf.dequantize(data, kind)
    return np.ascontiguousarray(values, dtype=np.float32)
