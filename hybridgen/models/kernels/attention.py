"""The checked door to decode attention."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import triton

from hybridgen.errors import InternalError
from hybridgen.models.kernels.decode_attention import decode_attention_kernel
from hybridgen.models.kernels.head_options import LOG2_E, PLAIN_HEADS, HeadOptions
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
        ahead: positions that a program asks for before the new keys are there.
        is_early: the first ``block_t`` positions are even read before; ``ahead`` counts from there
            on. Later ones come while the ones before are weighed if num_stages is 2, else after
            them, which takes fewer registers.
    """

    splits: int
    min_share: int
    block_t: int
    uses_dot: bool
    num_warps: int
    num_stages: int
    ahead: int = 64
    is_early: bool = False


TABLE_PATH = Path(__file__).with_name("attention_choices.json")

_MAX_SPLITS = 64
#: The matrix units take as many at least.
_LEAST_POSITIONS = 16
#: Dimensions of a head for which choices were measured.
_MEASURED_DIM = 128
#: A program asks for these one after the other, so they are few.
_MAX_BLOCKS_AHEAD = 8
#: Of a thread, for the shares that it joins at once.
_REGISTERS_TO_MERGE = 64
_MAX_CHUNK = 16


def choose_attention(
    num_sequences: int, num_kv_heads: int, head_dim: int = _MEASURED_DIM
) -> AttentionChoice:
    """The measured choice of the next larger batch, or the rule's where nobody measured.

    Larger heads than were measured get more warps, so that each holds as much, and fewer positions
    at once, so that as much of keys and values is on its way.
    """
    measured = load_table().get(num_kv_heads, {})
    batches = [batch for batch in measured if batch >= num_sequences]
    choice = measured[min(batches)] if batches else default_choice(num_sequences, num_kv_heads)
    growth = triton.cdiv(head_dim, _MEASURED_DIM)
    if growth == 1:
        return choice
    growth = triton.next_power_of_2(growth)
    is_least = choice.block_t == _LEAST_POSITIONS
    return choice._replace(
        num_warps=min(choice.num_warps * growth, 8),
        block_t=max(choice.block_t // growth, _LEAST_POSITIONS),
        num_stages=max(choice.num_stages // growth, 2) if is_least else choice.num_stages,
    )


def default_choice(num_sequences: int, num_kv_heads: int) -> AttentionChoice:
    """Few heads are split until the device is full; from 512 on whole ones fill it.

    Except where they would leave a second round half empty.
    """
    num_heads = num_sequences * num_kv_heads
    if num_heads < 64:
        splits = min(triton.cdiv(640, num_heads), 32)
        return AttentionChoice(splits, 64, 32, True, 4 if num_heads < 16 else 2, 4)
    if num_heads < 512:
        min_share = 64 if num_heads < 128 else 128
        return AttentionChoice(triton.cdiv(1024, num_heads), min_share, 16, True, 1, 5)
    if 1024 <= num_heads < 2048:
        return AttentionChoice(2, 128, 16, True, 1, 5)
    return AttentionChoice(1, 128, 32, True, 2, 4)


@cache
def load_table() -> dict[int, dict[int, AttentionChoice]]:
    """KV heads → batch → choice, measured at 1,024 positions by ``tools/tune_attention.py``."""
    table: dict[int, dict[int, AttentionChoice]] = {}
    for entry in json.loads(TABLE_PATH.read_text(encoding="utf-8"))["choices"]:
        choices = table.setdefault(entry["num_kv_heads"], {})
        choices[entry["num_sequences"]] = AttentionChoice(**entry["choice"])
    return table


def attention_needs(
    num_sequences: int, num_kv_heads: int, group: int, head_dim: int, choice: AttentionChoice
) -> tuple[int, int]:
    """Floats and counters of the workspace that ``decode_attention`` takes."""
    if choice.splits == 1:
        return 0, 0
    num_heads = num_sequences * num_kv_heads
    area = group * (triton.next_power_of_2(head_dim) + 1)
    return num_heads * triton.next_power_of_2(choice.splits) * area, num_heads


def _block_g(group: int, choice: AttentionChoice) -> int:
    # The matrix units take 16 rows at least; short groups fill them up.
    return max(16, triton.next_power_of_2(group)) if choice.uses_dot else 1


def _merge_chunk(choice: AttentionChoice, group: int, head_dim: int) -> int:
    """Shares that are joined at once, a power of two: what the registers of a program hold."""
    area: int = triton.next_power_of_2(group) * triton.next_power_of_2(head_dim)
    most: int = triton.next_power_of_2(choice.splits)
    held = max(_REGISTERS_TO_MERGE * 32 * choice.num_warps // area, 1)
    return min(1 << (held.bit_length() - 1), most, _MAX_CHUNK)


def _is_possible(choice: AttentionChoice, group: int, block_size: int) -> bool:
    small, large = sorted((choice.block_t, block_size))
    return choice.splits <= _MAX_SPLITS and large % small == 0 and (group == 1 or choice.uses_dot)


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
    heads: HeadOptions = PLAIN_HEADS,
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
        rope: cosines and sines, float32[num_positions, rotary_size / 2] each.
        positions: int32[num_sequences], of the new tokens, on the device; below 0 for idle rows.
        tables: int32[num_sequences, w]; entries past a position or before its window are not read.
        num_heads: query heads.
        workspace: ``attention_needs`` says how much.
        heads: of the layer.
        choice: ``choose_attention`` by default.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: shapes or the workspace do not fit.
    """
    cache.check_batch(qkv, rope, positions, tables, num_heads, heads)
    num_sequences, num_kv_heads, head_dim = len(qkv), cache.num_kv_heads, cache.head_dim
    group = num_heads // num_kv_heads
    choice = choice or choose_attention(num_sequences, num_kv_heads, head_dim)
    is_shaped = out.shape == (num_sequences, num_heads * head_dim)
    if not is_shaped or not _is_possible(choice, group, cache.block_size):
        raise InternalError("result or choice of attention does not fit", value=str(choice))
    floats, counters = attention_needs(num_sequences, num_kv_heads, group, head_dim, choice)
    workspace.require(num_floats=floats, num_counters=counters)
    decode_attention_kernel[(num_kv_heads, num_sequences, choice.splits)](
        qkv, cache.keys, cache.values, out, *rope, heads.q_norm, heads.k_norm, positions, tables,
        workspace.partials, workspace.counters,
        qkv.stride(0), out.stride(0), tables.stride(0), *cache.strides,
        heads.score_scale(head_dim) * LOG2_E, heads.cap_base2, heads.window_within(len(rope[0])),
        heads.norm_epsilon, choice.splits, choice.min_share, choice.ahead,
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, ROTARY=2 * rope[0].shape[1],
        BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_SIZE=cache.block_size,
        BLOCK_G=_block_g(group, choice), BLOCK_T=choice.block_t,
        STAGES=choice.num_stages, USE_DOT=choice.uses_dot, IS_EARLY=choice.is_early,
        MAX_SPLITS=triton.next_power_of_2(choice.splits),
        MERGE_CHUNK=_merge_chunk(choice, group, head_dim),
        BLOCKS_AHEAD=_MAX_BLOCKS_AHEAD,
        IS_CHAINED=is_chained, IS_COMPILED=not triton.knobs.runtime.interpret,
        num_warps=choice.num_warps, num_stages=choice.num_stages, launch_pdl=is_chained,
    )  # fmt: skip
