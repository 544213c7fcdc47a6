"""Paged attention: the checked door to the kernel, for tests and tools."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hybridgen.errors import InternalError
from hybridgen.models import _native
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.kv_cache import BLOCK_SIZE
from hybridgen.models.layers import DTYPE_CODES, address
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
    heads: HeadOptions = PLAIN_HEADS,
) -> torch.Tensor:
    """Norm and rotate q and k in place, store k and v, attend causally.

    Args:
        pool: does the work.
        shape: heads.
        qkv: float32[num_tokens, (num_heads + 2 num_kv_heads) head_dim].
        rope: cosines and sines, float32[position, rotary_size / 2] each.
        batch: positions and blocks.
        cache: keys [block, kv_head, head_dim, 16] and values [block, kv_head, 16, head_dim].
        heads: what else the layer does.

    Returns:
        float32[num_tokens, num_heads · head_dim].

    Raises:
        InternalError: something is out of bounds.
    """
    _check(shape, qkv, rope, batch, cache, heads=heads)
    out = torch.empty(len(qkv), shape.num_heads * shape.head_dim)
    scratch = _scratch(pool, shape, batch)
    record = AttentionRecord(
        qkv=qkv.data_ptr(),
        out=out.data_ptr(),
        keys=cache[0].data_ptr(),
        values=cache[1].data_ptr(),
        cosines=rope[0].data_ptr(),
        sines=rope[1].data_ptr(),
        q_norm=address(heads.q_norm),
        k_norm=address(heads.k_norm),
        positions=batch.positions.data_ptr(),
        tables=batch.tables.data_ptr(),
        scratch=scratch.data_ptr(),
        qkv_stride=qkv.stride(0),
        out_stride=out.stride(0),
        table_stride=batch.tables.stride(0),
        scratch_stride=scratch.stride(0),
        num_tokens=len(qkv),
        tokens_per_sequence=batch.tokens_per_sequence,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rotary_size=2 * rope[0].shape[1],
        window=heads.window,
        dtype=DTYPE_CODES[cache[0].dtype],
        scale=heads.score_scale(shape.head_dim),
        softcap=heads.softcap,
        epsilon=heads.epsilon,
    )
    _native.attend(pool.handle, encode_record(record))
    return out


def _scratch(pool: ComputePool, shape: AttentionShape, batch: PagedBatch) -> torch.Tensor:
    num_floats = scratch_floats(shape.head_dim, int(batch.positions.max()) + 1)
    return torch.empty(pool.num_threads, num_floats)


def _check(
    shape: AttentionShape,
    qkv: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    batch: PagedBatch,
    cache: tuple[torch.Tensor, torch.Tensor],
    *,
    heads: HeadOptions,
) -> None:
    num_blocks = cache[0].shape[0]
    num_sequences, width = batch.tables.shape
    row_size = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    norms = [norm for norm in (heads.q_norm, heads.k_norm) if norm is not None]
    problems = {
        "head_dim": shape.head_dim % BLOCK_SIZE != 0,
        "heads": shape.num_heads % shape.num_kv_heads != 0,
        "qkv": qkv.shape != (len(qkv), row_size) or qkv.dtype != torch.float32,
        "keys": cache[0].shape[1:] != (shape.num_kv_heads, shape.head_dim, BLOCK_SIZE),
        "values": cache[1].shape != (num_blocks, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim),
        "norms": len(norms) == 1
        or any(n.shape != (shape.head_dim,) or n.dtype != torch.float32 for n in norms),
        "rope": rope[0].shape != rope[1].shape or 2 * rope[0].shape[1] > shape.head_dim,
        "dtype": cache[0].dtype not in DTYPE_CODES or cache[0].dtype != cache[1].dtype,
        "positions": batch.positions.dtype != torch.int32 or len(batch.positions) != len(qkv),
        "sequences": num_sequences * batch.tokens_per_sequence != len(qkv),
        "tables": batch.tables.dtype != torch.int32
        or not bool(((batch.tables >= 0) & (batch.tables < num_blocks)).all()),
        "position": not bool(
            ((batch.positions >= 0) & (batch.positions < width * BLOCK_SIZE)).all()
        )
        or int(batch.positions.max()) >= len(rope[0]),
        "layout": not all(
            t.is_contiguous() for t in (qkv, *rope, *norms, *cache, batch.positions, batch.tables)
        ),
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("arguments of attention do not fit", value=", ".join(wrong))
