"""Paged attention: the checked door to the kernel, for tests and tools."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hybridgen.errors import InternalError
from hybridgen.models import _native
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.kv_cache import BLOCK_SIZE
from hybridgen.models.layers import DTYPE_CODES
from hybridgen.models.records import AttentionRecord, encode_record

#: Query rows computed together (HG_TILE of ops.h).
MAX_TILE = 12


class AttentionShape(NamedTuple):
    """Heads of one attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class PagedBatch(NamedTuple):
    """Which token sits where.

    Attributes:
        positions: int32[num_tokens], absolute, rising within a sequence.
        tables: int32[num_sequences, w], KV block of each 16 positions.
        tokens_per_sequence: consecutive tokens of each sequence.
    """

    positions: torch.Tensor
    tables: torch.Tensor
    tokens_per_sequence: int


def scratch_floats(head_dim: int, max_positions: int) -> int:
    """Work space of one thread: scaled queries and scores of one tile."""
    blocks = -(-max_positions // BLOCK_SIZE)
    return MAX_TILE * (head_dim + (blocks + 1) * BLOCK_SIZE)


def attend(
    pool: ComputePool,
    shape: AttentionShape,
    qkv: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    *,
    batch: PagedBatch,
    cache: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Rotate q and k in place, store k and v, attend causally.

    Args:
        pool: does the work.
        shape: heads.
        qkv: float32[num_tokens, (num_heads + 2 num_kv_heads) head_dim].
        rope: cosines and sines, float32[position, head_dim / 2] each.
        batch: positions and blocks.
        cache: keys [block, kv_head, head_dim, 16] and values [block, kv_head, 16, head_dim].

    Returns:
        float32[num_tokens, num_heads · head_dim].

    Raises:
        InternalError: something is out of bounds.
    """
    keys, values = cache
    num_tokens = len(qkv)
    _check(shape, qkv, rope, batch, cache)
    out = torch.empty(num_tokens, shape.num_heads * shape.head_dim)
    stride = scratch_floats(shape.head_dim, int(batch.positions.max()) + 1)
    scratch = torch.empty(pool.num_threads, stride)
    record = AttentionRecord(
        qkv=qkv.data_ptr(),
        out=out.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        cosines=rope[0].data_ptr(),
        sines=rope[1].data_ptr(),
        positions=batch.positions.data_ptr(),
        tables=batch.tables.data_ptr(),
        scratch=scratch.data_ptr(),
        qkv_stride=qkv.stride(0),
        out_stride=out.stride(0),
        table_stride=batch.tables.stride(0),
        scratch_stride=stride,
        num_tokens=num_tokens,
        tokens_per_sequence=batch.tokens_per_sequence,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=DTYPE_CODES[keys.dtype],
        scale=shape.head_dim**-0.5,
    )
    _native.attend(pool.handle, encode_record(record))
    return out


def _check(
    shape: AttentionShape,
    qkv: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    batch: PagedBatch,
    cache: tuple[torch.Tensor, torch.Tensor],
) -> None:
    num_blocks = cache[0].shape[0]
    num_sequences, width = batch.tables.shape
    heads = shape.num_heads + 2 * shape.num_kv_heads
    problems = {
        "head_dim": shape.head_dim % BLOCK_SIZE != 0,
        "heads": shape.num_heads % shape.num_kv_heads != 0,
        "qkv": qkv.shape != (len(qkv), heads * shape.head_dim) or qkv.dtype != torch.float32,
        "keys": cache[0].shape[1:] != (shape.num_kv_heads, shape.head_dim, BLOCK_SIZE),
        "values": cache[1].shape != (num_blocks, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim),
        "dtype": cache[0].dtype not in DTYPE_CODES or cache[0].dtype != cache[1].dtype,
        "positions": batch.positions.dtype != torch.int32 or len(batch.positions) != len(qkv),
        "sequences": num_sequences * batch.tokens_per_sequence != len(qkv),
        "tables": batch.tables.dtype != torch.int32
        or not bool(((batch.tables >= 0) & (batch.tables < num_blocks)).all()),
        "position": not bool(
            ((batch.positions >= 0) & (batch.positions < width * BLOCK_SIZE)).all()
        )
        or int(batch.positions.max()) >= min(len(rope[0]), len(rope[1])),
        "layout": not all(
            t.is_contiguous() for t in (qkv, *rope, *cache, batch.positions, batch.tables)
        ),
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("arguments of attention do not fit", value=", ".join(wrong))
