"""Stored rows of any element type → float rows of the wanted one, or INT8 with a scale per row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.hybridgen_file import DtypeName
from hybridgen.formats.stored_rows import Bytes, RowReader, StoredRows

TORCH_DTYPES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
#: Elements that are worked on at once: their float32 copy fits a core's own cache.
CHUNK_ELEMENTS = 1 << 19

_PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
}


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
    data = reader.read(rows, begin, end)
    plain = _PLAIN.get(rows.element.name)
    if plain is None:
        values = torch.from_numpy(_dequantized(rows, data))
    else:
        values = torch.from_numpy(data).view(plain)
    if rows.scales_start is not None:
        scales = torch.from_numpy(reader.read_scales(rows, begin, end))
        values = values.float().mul_(scales[:, None])
    if rows.permuted_heads:
        values = unpermute(values, rows.permuted_heads * (end - begin) // rows.num_rows)
    # By way of float32: torch's other casts go element by element.
    wide = values if values.dtype == dtype else values.float()
    result = wide.to(dtype)
    if not _is_finite(result):
        raise _not_finite(rows, dtype, is_in_source=not _is_finite(wide))
    return result


def unpermute(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of q or k from GGUF's interleaved order to rotate-half order.

    Per head of d rows, GGUF stores row i of the first half at 2i and of the second at 2i + 1.

    Args:
        rows: [num_heads * d, n].
        num_heads: heads in ``rows``.
    """
    return rows.view(num_heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _is_finite(values: torch.Tensor) -> bool:
    # Least and greatest carry NaN and infinity on, in one pass without a mask.
    return bool(torch.isfinite(torch.stack(torch.aminmax(values))).all())


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


def _dequantized(rows: StoredRows, data: Bytes) -> npt.NDArray[np.float32]:
    """Values of whole rows as float32."""
    import gguf  # noqa: PLC0415  slow to import, and only quantized files need it

    kind = gguf.GGMLQuantizationType[rows.element.name]
    with np.errstate(over="ignore", invalid="ignore"):
        values = gguf.dequantize(data, kind)
    return np.ascontiguousarray(values, dtype=np.float32)
