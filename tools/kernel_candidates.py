"""Choices of kernels and blocks that are worth a try, from what has been seen to do well."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hybridgen.models.kernels.attention import AttentionChoice
from hybridgen.models.kernels.linear_choice import LIMB_GROUP, LinearChoice, LinearShape

#: Products behind a norm; the others add to the residual.
NORMED = ("qkv", "gate_up", "head")
NUM_PROCESSORS = 132
#: Rows and columns of weights (of both matrices of a gate), warps.
_TILES = (
    (64, 64, 4), (64, 128, 4), (64, 256, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8),
    (256, 64, 8),
)  # fmt: skip
#: The same for products in integers.
_LIMB_TILES = (
    (64, 128, 4), (64, 256, 4), (64, 512, 4), (128, 128, 4), (128, 256, 4), (128, 128, 8),
    (128, 256, 8),
)  # fmt: skip
#: Shared memory of a program, a little below the 232,448 there are: Triton adds to the estimate.
MAX_SHARED_BYTES = 225_000
#: Registers of a thread for the first tile of weights.
_MAX_HELD = 64
#: Columns that programs ask for early: in the first round, and in the second for the best.
FIRST_AHEAD = 512
MORE_AHEAD = {
    "dot": (0, 256, 1024, 2048),
    "gemv": (),
    "limb_gemv": (),
    "limb_dot": (0, 256, 1024, 2048),
    "library": (),
}
TUNED_CONTEXT = 1024
#: Positions and warps of a program of attention that reads its first tile before its producer has
#: ended, so that few registers hold it; and of one that does not, with the stages of its pipeline.
_EARLY_TILES = ((32, 4), (64, 4), (64, 8), (128, 8))
_LATE_TILES = ((16, 1, 5), (32, 2, 4), (64, 4, 3), (128, 4, 2))
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
#: Programs of one round; and of several, which matter less the fewer there are in the last one.
_FEW_PROGRAMS, _MAX_PROGRAMS = 700, 2600
#: Positions that they ask for early.
MORE_POSITIONS_AHEAD = (0, 32, 128)


def product_candidates(name: str, shape: LinearShape, batch: int) -> Iterator[LinearChoice]:
    """Choices for a product of a model; few for the output matrix, which is large and only one."""
    if name != "head":
        yield from linear_candidates(shape, batch, has_norm=name in NORMED)
        return
    for choice in linear_candidates(shape, batch, has_norm=batch == 1):
        if choice.splits == 1 and choice.num_stages <= 4:
            yield choice


def linear_candidates(shape: LinearShape, batch: int, *, has_norm: bool) -> Iterator[LinearChoice]:
    """Choices for a product; ``has_norm`` says that a norm comes before it."""
    if batch == 1 and shape.weight_bits == 8:
        yield from _limb_candidates(shape)
        return
    if batch == 1:
        yield from _gemv_candidates(shape, has_norm)
        return
    yield LinearChoice("library")
    if shape.weight_bits == 8:
        yield from _limb_dot_candidates(shape, batch)
        return
    block_b = max(16, min(1 << (batch - 1).bit_length(), 128))
    for choice in _dot_candidates(shape, block_b):
        yield choice
        if has_norm and block_b <= 32:
            yield choice._replace(fuses_norm=True)
        tile = choice.block_n * (2 if shape.is_gated else 1)
        held = tile * choice.block_k * shape.weight_bits // (32 * 32 * choice.num_warps)
        if held <= _MAX_HELD and choice.num_stages <= 4 and block_b <= 32:
            yield choice._replace(is_early=True, ahead=0)


def _dot_candidates(shape: LinearShape, block_b: int) -> Iterator[LinearChoice]:
    """Tiles of 8 to 32 KiB, few programs that together leave room for those of the next kernel."""
    matrices = 2 if shape.is_gated else 1
    for (tile, block_k, warps), stages in itertools.product(_TILES, (3, 4, 5, 6)):
        block_n, weight_bytes = tile // matrices, shape.weight_bits // 8
        shared = stages * block_k * (tile * weight_bytes + block_b * 2)
        num_sums = tile * block_b // (32 * warps)  # registers of a thread
        fits = 30_000 <= shared <= MAX_SHARED_BYTES and num_sums <= 128
        is_narrow = shape.size % block_k or tile < min(block_b, 128)
        if fits and not is_narrow:
            for splits in _useful_splits(shape, block_n, block_k, MAX_SHARED_BYTES // shared):
                yield LinearChoice(
                    "dot", block_n, block_k, block_b, splits, warps, stages,
                    ahead=FIRST_AHEAD,
                )  # fmt: skip


def _limb_dot_candidates(shape: LinearShape, batch: int) -> Iterator[LinearChoice]:
    """The same for products in integers, where a token takes two columns of the matrix unit."""
    matrices = 2 if shape.is_gated else 1
    block_b = max(8, 1 << (batch - 1).bit_length())
    for (tile, block_k, warps), stages in itertools.product(_LIMB_TILES, (3, 4, 6)):
        for tokens in {min(block_b, 32), min(block_b, 64)}:
            shared = stages * block_k * (tile + 2 * tokens)
            fits = 24_000 <= shared <= MAX_SHARED_BYTES and tile * tokens <= 1024 * warps
            if fits and shape.size % block_k == 0:
                at_once = MAX_SHARED_BYTES // shared
                for splits in _useful_splits(shape, tile // matrices, block_k, at_once):
                    yield LinearChoice(
                        "limb_dot", tile // matrices, block_k, tokens, splits, warps, stages,
                        ahead=FIRST_AHEAD,
                    )  # fmt: skip


def _useful_splits(shape: LinearShape, block_n: int, block_k: int, per_processor: int) -> list[int]:
    """The fewest that keep the device busy, and two that fill it best beside them."""
    tiles = -(-shape.num_rows // block_n)
    possible = [
        splits
        for splits in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
        if tiles * splits >= 0.75 * NUM_PROCESSORS and shape.size // block_k >= 4 * splits
    ]

    def idle_share(splits: int) -> float:
        rounds = tiles * splits / (NUM_PROCESSORS * min(per_processor, 4))
        return 1 - rounds / -(-rounds // 1)

    return sorted({*possible[:1], *sorted(possible[1:5], key=idle_share)[:2]})


def _gemv_candidates(shape: LinearShape, has_norm: bool) -> Iterator[LinearChoice]:
    for block_n, block_k, warps, stages in itertools.product(
        (1, 2, 4, 8), (512, 1024, 2048), (2, 4, 8), (1, 2, 3)
    ):
        per_thread = block_n * (2 if shape.is_gated else 1) * block_k // (warps * 32)
        if max(16, 8 * 16 // shape.weight_bits) <= per_thread <= 64:
            for fuses_norm in (False, True) if has_norm else (False,):
                yield LinearChoice(
                    "gemv", block_n, block_k, num_warps=warps, num_stages=stages,
                    fuses_norm=fuses_norm,
                )  # fmt: skip


def _limb_candidates(shape: LinearShape) -> Iterator[LinearChoice]:
    """Every thread has a group of columns, or two, in each row."""
    for tile, groups, warps, stages in itertools.product((4, 8, 16), (1, 2), (1, 2, 4, 8), (1, 3)):
        block_n = tile // (2 if shape.is_gated else 1)
        block_k = LIMB_GROUP * 32 * groups * warps
        is_wasteful = -(-shape.size // block_k) * block_k > 1.25 * shape.size
        if not is_wasteful and tile * groups <= 16 and (groups == 1 or stages == 1):
            yield LinearChoice("limb_gemv", block_n, block_k, num_warps=warps, num_stages=stages)


def attention_candidates(num_sequences: int, num_kv_heads: int) -> Iterator[AttentionChoice]:
    """Choices for attention at 1,024 positions: few programs for few heads, long ones for many."""
    num_heads = num_sequences * num_kv_heads
    possible = [splits for splits in _SPLITS if 60 <= num_heads * splits <= _MAX_PROGRAMS]
    for splits in possible or [1]:
        share = -(-TUNED_CONTEXT // (16 * splits)) * 16  # whole blocks of the cache
        is_many = num_heads * splits > _FEW_PROGRAMS and splits > 1
        for block_t, warps in () if is_many else _EARLY_TILES:
            is_single = block_t >= share
            if block_t < 2 * share:
                yield AttentionChoice(
                    splits, min(share, 128), block_t, True, warps,
                    num_stages=1 if is_single else 3 if block_t < 128 else 2,
                    ahead=0 if is_single else 64, is_early=True,
                )  # fmt: skip
        for block_t, warps, stages in _LATE_TILES[1:3] if is_many else _LATE_TILES:
            if block_t <= max(share, 64):
                yield AttentionChoice(splits, min(share, 128), block_t, True, warps, stages)
