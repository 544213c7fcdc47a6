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
        prefetched: positions asked for while the kernel before still runs; a power of two.
    """

    splits: int
    min_share: int
    block_t: int
    uses_dot: bool
    num_warps: int
    num_stages: int
    prefetched: int = 0


#: Programs that keep the device's memory busy: about four for each of 132 multiprocessors.
_WANTED_PROGRAMS = 528


def choose_attention(num_sequences: int, num_kv_heads: int, group: int) -> AttentionChoice:
    """A choice for a batch of that many sequences."""
    wanted = triton.cdiv(_WANTED_PROGRAMS, num_sequences * num_kv_heads)
    splits = min(triton.next_power_of_2(wanted), 64)
    if group == 1:
        return AttentionChoice(splits, 64, 32, False, 4, 3)
    return AttentionChoice(splits, 128, 64, True, 4, 3)


def attention_needs(
    num_sequences: int, num_kv_heads: int, group: int, head_dim: int, choice: AttentionChoice
) -> tuple[int, int]:
    """Floats and counters of the workspace that ``decode_attention`` takes."""
    if choice.splits == 1:
        return 0, 0
    num_heads = num_sequences * num_kv_heads
    area = _block_g(group, choice) * (triton.next_power_of_2(head_dim) + 2)
    return num_heads * choice.splits * area, num_heads


def _block_g(group: int, choice: AttentionChoice) -> int:
    # The matrix units take 16 rows at least; short groups fill them up.
    return max(16, triton.next_power_of_2(group)) if choice.uses_dot else 1


def _is_prefetchable(cache: PagedCache) -> bool:
    """Whole 128-byte pieces, a power of two of them."""
    row_bytes = cache.head_dim * cache.keys.element_size()
    return row_bytes >= 128 and row_bytes & (row_bytes - 1) == 0


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
        is_chained: start while the kernel before still runs (see ``producer``); then positions
            and tables must not be written by a kernel of the same chain.

    Raises:
        InternalError: shapes or the workspace do not fit.
    """
    cache.check_batch(qkv, rope, positions, tables, num_heads)
    num_sequences, num_kv_heads, head_dim = len(qkv), cache.num_kv_heads, cache.head_dim
    group = num_heads // num_kv_heads
    choice = choice or choose_attention(num_sequences, num_kv_heads, group)
    if out.shape != (num_sequences, num_heads * head_dim) or (group > 1 and not choice.uses_dot):
        raise InternalError("result or choice of attention does not fit", value=str(choice))
    floats, counters = attention_needs(num_sequences, num_kv_heads, group, head_dim, choice)
    workspace.require(num_floats=floats, num_counters=counters)
    decode_attention_kernel[(num_kv_heads, num_sequences, choice.splits)](
        qkv, cache.keys, cache.values, out, *rope, positions, tables,
        workspace.partials, workspace.counters,
        qkv.stride(0), out.stride(0), tables.stride(0), *cache.strides,
        head_dim**-0.5 * math.log2(math.e),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_SIZE=cache.block_size,
        BLOCK_G=_block_g(group, choice), BLOCK_T=choice.block_t, SPLITS=choice.splits,
        MIN_SHARE=choice.min_share, STAGES=choice.num_stages, USE_DOT=choice.uses_dot,
        PREFETCHED=choice.prefetched if is_chained and _is_prefetchable(cache) else 0,
        IS_CHAINED=is_chained, num_warps=choice.num_warps, launch_pdl=is_chained,
    )  # fmt: skip
