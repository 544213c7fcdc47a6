"""The checked door to decode attention."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton

from hybridgen.errors import InternalError
from hybridgen.models.kernels.decode_attention import decode_attention_kernel
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.workspace import Workspace


class AttentionChoice(NamedTuple):
    """How the positions are dealt.

    Attributes:
        splits: most shares of one sequence; the grid is num_kv_heads · num_sequences · splits.
        min_share: positions below which a sequence is not split further.
        block_t: positions of one iteration.
        uses_dot: matrix units, for the query heads of a group together; else one query head per
            kv head on the vector units.
        num_warps, num_stages: of one program.
    """

    splits: int
    min_share: int
    block_t: int
    uses_dot: bool
    num_warps: int
    num_stages: int


_MAX_SPLITS = 64


def choose_attention(num_sequences: int, num_kv_heads: int) -> AttentionChoice:
    """The choice for a batch, measured on an H200 at 1,024 positions (tools/bench_kernels.py).

    Few heads are split until the device is full; from 512 on whole ones fill it, except where
    they would leave a second round half empty.
    """
    num_heads = num_sequences * num_kv_heads
    if num_heads < 64:
        splits = min(triton.cdiv(640, num_heads), 32)
        return AttentionChoice(splits, 64, 32, True, 4 if num_heads < 16 else 2, 5)
    if num_heads < 512:
        min_share = 64 if num_heads < 128 else 128
        return AttentionChoice(triton.cdiv(1024, num_heads), min_share, 16, True, 1, 7)
    if 1024 <= num_heads < 2048:
        return AttentionChoice(2, 128, 16, True, 1, 7)
    return AttentionChoice(1, 128, 32, True, 2, 5)


def attention_needs(
    num_sequences: int, num_kv_heads: int, group: int, head_dim: int, choice: AttentionChoice
) -> tuple[int, int]:
    """Floats and counters of the workspace that ``decode_attention`` takes."""
    if choice.splits == 1:
        return 0, 0
    num_heads = num_sequences * num_kv_heads
    area = group * (triton.next_power_of_2(head_dim) + 2)
    return num_heads * choice.splits * area, num_heads


def _block_g(group: int, choice: AttentionChoice) -> int:
    # The matrix units take 16 rows at least; short groups fill them up.
    return max(16, triton.next_power_of_2(group)) if choice.uses_dot else 1


def decode_attention(
    qkv: torch.Tensor,
    cache: PagedCache,
    out: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    tables: torch.Tensor,
    *,
    num_heads: int,
    workspace: Workspace,
    choice: AttentionChoice | None = None,
    is_chained: bool = False,
) -> None:
    """Rotate, store and attend for one new token of each sequence; see ``rotate_and_store``.

    The new key and value go to block ``tables[i, position // block_size]``; everything before
    must be in the cache. Must move the keys and values of all positions once.

    Args:
        qkv: [num_sequences, (num_heads + 2 num_kv_heads) head_dim], not rotated, not changed.
        cache: keys and values of one layer.
        out: [num_sequences, num_heads · head_dim]; zeros in idle rows.
        rope: cosines and sines, float32[num_positions, head_dim / 2] each.
        positions: int32[num_sequences], of the new tokens, on the device; below 0 for idle rows.
        tables: int32[num_sequences, w] on the device; entries past a position are not read.
        num_heads: query heads.
        workspace: ``attention_needs`` says how much.
        choice: ``choose_attention`` by default.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: shapes or the workspace do not fit.
    """
    cache.check_batch(qkv, rope, positions, tables, num_heads)
    num_sequences, num_kv_heads, head_dim = len(qkv), cache.num_kv_heads, cache.head_dim
    group = num_heads // num_kv_heads
    choice = choice or choose_attention(num_sequences, num_kv_heads)
    is_possible = choice.splits <= _MAX_SPLITS and (group == 1 or choice.uses_dot)
    if out.shape != (num_sequences, num_heads * head_dim) or not is_possible:
        raise InternalError("result or choice of attention does not fit", value=str(choice))
    floats, counters = attention_needs(num_sequences, num_kv_heads, group, head_dim, choice)
    workspace.require(num_floats=floats, num_counters=counters)
    decode_attention_kernel[(num_kv_heads, num_sequences, choice.splits)](
        qkv, cache.keys, cache.values, out, *rope, positions, tables,
        workspace.partials, workspace.counters,
        qkv.stride(0), out.stride(0), tables.stride(0), *cache.strides,
        head_dim**-0.5 * math.log2(math.e), choice.splits, choice.min_share,
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_SIZE=cache.block_size,
        BLOCK_G=_block_g(group, choice), BLOCK_T=choice.block_t,
        STAGES=choice.num_stages, USE_DOT=choice.uses_dot,
        MAX_SPLITS=16 if choice.splits <= 16 else 64, IS_CHAINED=is_chained,
        num_warps=choice.num_warps, num_stages=choice.num_stages, launch_pdl=is_chained,
    )  # fmt: skip
