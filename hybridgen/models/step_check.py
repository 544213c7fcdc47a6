"""Bounds of one engine step, checked before any native code follows the numbers."""

from __future__ import annotations

import numpy as np

from hybridgen.errors import InternalError
from hybridgen.models.engine import FloatArray, IntArray


def _require_type(name: str, array: np.ndarray, dtype: type, num_dims: int) -> None:
    if array.dtype != dtype or array.ndim != num_dims or not array.flags.c_contiguous:
        raise InternalError(
            f"{name} is not a contiguous {np.dtype(dtype).name} array of {num_dims} dimensions",
            value=f"{array.dtype.name}{list(array.shape)}",
        )


def _require_range(name: str, array: IntArray, limit: int) -> None:
    # One unsigned comparison finds negative numbers too.
    if array.size and int(array.view(np.uint32).max()) >= limit:
        raise InternalError(
            f"{name} out of range", value=f"{array.min()} … {array.max()}", limit=limit - 1
        )


def _require_row(logits_out: FloatArray, shape: tuple[int, ...]) -> None:
    if (
        logits_out.dtype != np.float32
        or logits_out.shape != shape
        or logits_out.strides[-1] != 4
        or not logits_out.flags.writeable
    ):
        raise InternalError(
            "logits_out is not a writable float32 array of the right shape",
            value=f"{logits_out.dtype.name}{list(logits_out.shape)}",
            limit=str(list(shape)),
        )


def check_prefill(
    ids: IntArray,
    start: int,
    blocks: IntArray,
    logits_out: FloatArray | None,
    *,
    num_blocks: int,
    block_size: int,
    vocab_size: int,
    max_positions: int,
) -> None:
    """Raise ``InternalError`` unless the arguments of ``Engine.prefill`` are in bounds."""
    _require_type("ids", ids, np.int32, 1)
    _require_type("blocks", blocks, np.int32, 1)
    if not len(ids):
        raise InternalError("a prefill chunk is empty")
    _require_range("token id", ids, vocab_size)
    limit = min(len(blocks) * block_size, max_positions)
    if start < 0 or start + len(ids) > limit:
        raise InternalError(
            "a prefill chunk does not fit its blocks or the context",
            value=f"positions {start} … {start + len(ids) - 1}",
            limit=limit - 1,
        )
    used = (start + len(ids) + block_size - 1) // block_size
    _require_range("KV block", blocks[:used], num_blocks)
    if logits_out is not None:
        _require_row(logits_out, (vocab_size,))


def check_decode(
    ids: IntArray,
    positions: IntArray,
    block_tables: IntArray,
    logits_out: FloatArray,
    *,
    num_blocks: int,
    block_size: int,
    vocab_size: int,
    max_positions: int,
) -> None:
    """Raise ``InternalError`` unless the arguments of ``Engine.decode`` are in bounds."""
    _require_type("ids", ids, np.int32, 1)
    _require_type("positions", positions, np.int32, 1)
    _require_type("block_tables", block_tables, np.int32, 2)
    num_rows, width = len(ids), block_tables.shape[1]
    if not num_rows or len(positions) != num_rows or len(block_tables) != num_rows:
        raise InternalError(
            "ids, positions and block_tables differ in rows, or there is none",
            value=f"{num_rows}, {len(positions)}, {len(block_tables)}",
        )
    _require_range("token id", ids, vocab_size)
    _require_range("position", positions, min(width * block_size, max_positions))
    # Entries past a row's last block are padding and may hold anything.
    used = block_tables[np.arange(width) <= (positions // block_size)[:, None]]
    _require_range("KV block", used, num_blocks)
    _require_row(logits_out, (num_rows, vocab_size))
