"""Norms, partial rotation, scales, caps and windows of attention, in decode steps and prefill."""

from __future__ import annotations

import pytest
import torch

from hybridgen.models.kernels import attention
from hybridgen.models.kernels.attention import AttentionChoice, choose_attention
from hybridgen.models.kernels.head_options import HeadOptions
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.rotary import rotate_and_store
from tests.models.kernels.oracles import attended, relative_error, rotated_heads
from tests.models.kernels.test_attention import EARLY, SPLIT, WHOLE, Stage, build, places_of, run

POSITIONS = [0, 15, 16, 37, 70]
VECTOR = EARLY._replace(uses_dot=False)


def normed(head_dim: int) -> HeadOptions:
    generator = torch.Generator().manual_seed(9)
    q_norm, k_norm = torch.rand(2, head_dim, generator=generator) + 0.5
    return HeadOptions(q_norm=q_norm, k_norm=k_norm, epsilon=1e-5)


ALL = normed(96)._replace(scale=0.2, softcap=3.0, window=21)


def oracle(stage: Stage, before: PagedCache, row: int) -> torch.Tensor:
    position = int(stage.positions[row])
    query, key, value = rotated_heads(
        stage.qkv[row], stage.rope, position, stage.sizes, stage.heads
    )
    keys = torch.cat([stage.at(before.keys, row, position).double(), key[None]])
    values = torch.cat([stage.at(before.values, row, position).double(), value[None]])
    assert relative_error(stage.at(stage.cache.keys, row, position + 1)[-1], key) < 1e-6
    assert torch.equal(stage.at(stage.cache.values, row, position + 1)[-1], value.float())
    return attended(query, keys, values, stage.heads)


def check(stage: Stage, choice: AttentionChoice) -> None:
    before = PagedCache(stage.cache.keys.clone(), stage.cache.values.clone())
    out = run(stage, choice)
    for row in range(len(stage.positions)):
        assert relative_error(out[row], oracle(stage, before, row)) < 2e-6


@pytest.mark.parametrize("choice", [WHOLE, SPLIT, EARLY, SPLIT._replace(block_t=32), VECTOR])
@pytest.mark.parametrize(
    ("head_dim", "rotary", "heads"),
    [
        (64, 0, normed(64)),
        (64, 16, HeadOptions()),
        (80, 32, normed(80)),
        (64, 0, HeadOptions(scale=0.3)),
        (64, 0, HeadOptions(softcap=2.0)),
        (64, 0, HeadOptions(window=20)),
        (96, 64, ALL),
    ],
)
def test_every_option_equals_the_oracle(
    choice: AttentionChoice, head_dim: int, rotary: int, heads: HeadOptions
) -> None:
    num_heads = 2 if choice.uses_dot else 1
    check(build(num_heads, 1, head_dim, POSITIONS, rotary=rotary, heads=heads), choice)


@pytest.mark.parametrize("head_dim", [80, 256])
def test_heads_of_other_families_equal_the_oracle(head_dim: int) -> None:
    choice = choose_attention(1, 1, head_dim)._replace(splits=2)
    check(build(4, 1, head_dim, [50], heads=HeadOptions(softcap=4.0)), choice)


@pytest.mark.parametrize("choice", [WHOLE, SPLIT._replace(block_t=32), EARLY, VECTOR])
@pytest.mark.parametrize("window", [1, 2, 16, 17, 32, 33, 71])
def test_nothing_before_a_window_is_read(choice: AttentionChoice, window: int) -> None:
    stage = build(1, 1, 64, POSITIONS, heads=HeadOptions(window=window))
    before = PagedCache(stage.cache.keys.clone(), stage.cache.values.clone())
    for row, position in enumerate(POSITIONS):
        first = max(position - window + 1, 0)
        for pages in stage.cache:
            for place in range(first):
                pages[stage.tables[row, place // 16], :, place % 16] = torch.nan
        stage.tables[row, : first // 16] = 2**24  # there is no such block
    out = run(stage, choice)
    for row, position in enumerate(POSITIONS):
        stage.tables[row, : max(position - window + 1, 0) // 16] = 0
        assert relative_error(out[row], oracle(stage, before, row)) < 2e-6


def test_a_window_is_dealt_over_all_splits() -> None:
    stage = build(1, 1, 64, [16 * 20 + 3], heads=HeadOptions(window=16 * 6))
    many = SPLIT._replace(splits=7)
    assert relative_error(run(stage, many), run(stage, WHOLE).double()) < 1e-6


@pytest.mark.parametrize(
    ("head_dim", "rotary", "heads"),
    [(64, 0, normed(64)), (64, 16, HeadOptions()), (80, 32, normed(80)), (96, 64, ALL)],
)
def test_prefill_stores_what_decoding_stores(
    head_dim: int, rotary: int, heads: HeadOptions
) -> None:
    stage = build(4, 2, head_dim, [0, 17, 33], rotary=rotary, heads=heads)
    other = PagedCache(*(memory.clone() for memory in stage.cache))
    run(stage, SPLIT)
    qkv = stage.qkv.clone()
    rotate_and_store(
        qkv, other, stage.rope, stage.positions, places_of(stage), num_heads=4, heads=heads
    )
    assert torch.allclose(other.keys, stage.cache.keys, atol=1e-6)
    assert torch.equal(other.values, stage.cache.values)
    for row, position in enumerate(stage.positions.tolist()):
        parts = rotated_heads(stage.qkv[row], stage.rope, position, stage.sizes, heads)
        wanted = torch.cat([part.flatten() for part in parts])
        assert relative_error(qkv[row], wanted) < 1e-6


def test_larger_heads_get_more_warps_and_fewer_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = SPLIT._replace(block_t=64), SPLIT._replace(block_t=16, num_stages=5)
    monkeypatch.setattr(attention, "load_table", lambda: {8: {1: wide, 2: narrow}})
    for head_dim in (64, 80, 128):
        assert choose_attention(1, 8, head_dim) == choose_attention(1, 8) == wide
    assert choose_attention(1, 8, 256) == wide._replace(num_warps=8, block_t=32)
    assert choose_attention(2, 8, 256) == narrow._replace(num_warps=8, num_stages=2)
