from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels import attention
from hybridgen.models.kernels.attention import (
    AttentionChoice,
    attention_needs,
    choose_attention,
    decode_attention,
    default_choice,
    load_table,
)
from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.rotary import rotate_and_store
from hybridgen.models.kernels.workspace import Workspace
from tests.models.kernels.oracles import attended, relative_error, rotated_heads
from tools.kernel_candidates import attention_candidates

BLOCK_SIZE = 16
WHOLE = AttentionChoice(1, 16, 16, True, 4, 2)
SPLIT = AttentionChoice(3, 16, 16, True, 4, 2)
EARLY = AttentionChoice(3, 16, 16, True, 4, 1, ahead=0, is_early=True)


class Stage(NamedTuple):
    num_heads: int
    qkv: torch.Tensor
    cache: PagedCache
    rope: tuple[torch.Tensor, torch.Tensor]
    positions: torch.Tensor
    tables: torch.Tensor
    heads: HeadOptions = PLAIN_HEADS

    @property
    def sizes(self) -> list[int]:
        kv = self.cache.num_kv_heads
        return [self.num_heads, kv, kv]

    def at(self, memory: torch.Tensor, row: int, count: int) -> torch.Tensor:
        """Keys or values [count, kv_heads, d] of a sequence's first positions."""
        gathered = memory[self.tables[row].long()].transpose(1, 2).flatten(0, 1)
        return gathered[:count]


def build(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    positions: list[int],
    *,
    rotary: int = 0,
    heads: HeadOptions = PLAIN_HEADS,
    seed: int = 0,
) -> Stage:
    generator = torch.Generator().manual_seed(seed)
    width = max(positions) // BLOCK_SIZE + 1
    num_blocks = len(positions) * width + 2

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    order = torch.randperm(num_blocks, generator=generator)[: len(positions) * width]
    angles = normal(max(positions) + 1, (rotary or head_dim) // 2)
    shape = (num_blocks, num_kv_heads, BLOCK_SIZE, head_dim)
    return Stage(
        num_heads,
        normal(len(positions), (num_heads + 2 * num_kv_heads) * head_dim),
        PagedCache(normal(*shape), normal(*shape)),
        (angles.cos(), angles.sin()),
        torch.tensor(positions, dtype=torch.int32),
        order.view(len(positions), width).int(),
        heads,
    )


def run(stage: Stage, choice: AttentionChoice) -> torch.Tensor:
    cache = stage.cache
    group = stage.num_heads // cache.num_kv_heads
    floats, counters = attention_needs(
        len(stage.qkv), cache.num_kv_heads, group, cache.head_dim, choice
    )
    workspace = Workspace("cpu", num_floats=floats, num_counters=counters)
    workspace.partials.fill_(torch.nan)  # whatever was there must not count
    out = torch.full((len(stage.qkv), stage.num_heads * cache.head_dim), torch.nan)
    out = out.to(stage.qkv.dtype)
    for _ in range(2):  # the second finds the counters as the first left them
        decode_attention(
            stage.qkv, cache, out, stage.rope, stage.positions, stage.tables,
            num_heads=stage.num_heads, workspace=workspace, choice=choice, heads=stage.heads,
        )  # fmt: skip
        assert not workspace.counters.any()
    return out


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "choice"),
    [
        (2, 2, 64, WHOLE),
        (2, 2, 96, SPLIT),
        (2, 2, 64, SPLIT._replace(uses_dot=False)),
        (4, 1, 128, SPLIT),
        (6, 2, 64, SPLIT._replace(block_t=32)),
        (2, 2, 64, WHOLE._replace(is_early=True)),
        (2, 2, 96, EARLY),
        (4, 1, 128, EARLY._replace(block_t=32)),
        (2, 2, 64, EARLY._replace(uses_dot=False)),
    ],
)
def test_every_length_equals_the_oracle(
    num_heads: int, num_kv_heads: int, head_dim: int, choice: AttentionChoice
) -> None:
    stage = build(num_heads, num_kv_heads, head_dim, [0, 15, 16, 37, 48])
    before = PagedCache(stage.cache.keys.clone(), stage.cache.values.clone())
    out = run(stage, choice)
    for row, position in enumerate(stage.positions.tolist()):
        query, key, value = rotated_heads(stage.qkv[row], stage.rope, position, stage.sizes)
        keys = torch.cat([stage.at(before.keys, row, position).double(), key[None]])
        values = torch.cat([stage.at(before.values, row, position).double(), value[None]])
        assert relative_error(out[row], attended(query, keys, values)) < 1e-6
        assert relative_error(stage.at(stage.cache.keys, row, position + 1), keys) < 1e-6
        assert relative_error(stage.at(stage.cache.values, row, position + 1), values) < 1e-6


@pytest.mark.parametrize("choice", [SPLIT, EARLY])
def test_many_splits_are_merged_some_at_a_time(choice: AttentionChoice) -> None:
    stage = build(3, 1, 64, [16 * 19 + 5, 7])
    many = choice._replace(splits=21, num_warps=1)
    assert relative_error(run(stage, many), run(stage, WHOLE).double()) < 1e-6


def test_no_split_gets_less_than_its_least_share() -> None:
    stage = build(2, 2, 64, [64])
    floats, counters = attention_needs(1, 2, 1, 64, EARLY)
    workspace = Workspace("cpu", num_floats=floats, num_counters=counters)
    workspace.partials.fill_(torch.nan)
    decode_attention(
        stage.qkv, stage.cache, torch.empty(1, 128), stage.rope, stage.positions, stage.tables,
        num_heads=2, workspace=workspace, choice=EARLY._replace(min_share=32),
    )  # fmt: skip
    written = workspace.partials.view(2, 4, 65).isfinite().flatten(1).sum(1)
    assert written.tolist() == [2 * 65] * 2  # two splits of 32 positions, though three may be


def test_nothing_but_the_new_token_is_written() -> None:
    stage = build(2, 1, 64, [5, 20])
    before = stage.cache.keys.clone()
    run(stage, SPLIT)
    changed = (stage.cache.keys != before).any(-1).nonzero().tolist()
    wanted = [[int(stage.tables[0, 0]), 0, 5], [int(stage.tables[1, 1]), 0, 4]]
    assert sorted(changed) == sorted(wanted)


def test_idle_rows_give_zeros_and_touch_nothing() -> None:
    stage = build(2, 2, 64, [20, 3])
    stage.positions[0] = -1
    before = stage.cache.keys.clone()
    out = run(stage, SPLIT)
    assert not out[0].any()
    assert torch.isfinite(out[1]).all()
    used = stage.tables[0].long()
    assert torch.equal(stage.cache.keys[used], before[used])


def test_half_precision_stays_close() -> None:
    stage = build(2, 2, 64, [40, 9])
    keys, values = (memory.half() for memory in stage.cache)
    half = stage._replace(qkv=stage.qkv.half(), cache=PagedCache(keys, values))
    assert relative_error(run(half, SPLIT), run(stage, WHOLE).double()) < 2e-3


def test_positions_may_lie_first_in_memory() -> None:
    stage = build(2, 2, 64, [40, 9])
    swapped = [memory.transpose(1, 2).contiguous().transpose(1, 2) for memory in stage.cache]
    other = stage._replace(cache=PagedCache(*swapped))
    assert torch.equal(run(other, SPLIT), run(stage, SPLIT))


def places_of(stage: Stage) -> torch.Tensor:
    """Where the rows' new tokens go: block · block size + offset."""
    columns = (stage.positions // BLOCK_SIZE).long()[:, None]
    blocks = torch.gather(stage.tables, 1, columns)[:, 0]
    return blocks * BLOCK_SIZE + stage.positions % BLOCK_SIZE


def test_prefill_stores_what_decoding_stores_and_rotates_in_place() -> None:
    stage = build(4, 2, 96, [0, 17, 33])
    other = PagedCache(*(memory.clone() for memory in stage.cache))
    run(stage, SPLIT)
    qkv = stage.qkv.clone()
    rotate_and_store(qkv, other, stage.rope, stage.positions, places_of(stage), num_heads=4)
    assert torch.allclose(other.keys, stage.cache.keys, atol=1e-6)
    assert torch.equal(other.values, stage.cache.values)
    for row, position in enumerate(stage.positions.tolist()):
        query, key, _ = rotated_heads(stage.qkv[row], stage.rope, position, stage.sizes)
        wanted = torch.cat([query.flatten(), key.flatten()])
        assert relative_error(qkv[row, : len(wanted)], wanted) < 1e-6
    assert torch.equal(qkv[:, 6 * 96 :], stage.qkv[:, 6 * 96 :])


def test_prefill_leaves_out_idle_rows() -> None:
    stage = build(2, 1, 64, [8])
    qkv = stage.qkv.expand(3, -1).clone()
    positions = torch.tensor([4, -1, 5], dtype=torch.int32)
    block = int(stage.tables[0, 0])
    places = torch.tensor([16 * block + 4, 0, 16 * block + 5], dtype=torch.int32)
    before = stage.cache.keys.clone()
    rotate_and_store(qkv, stage.cache, stage.rope, positions, places, num_heads=2)
    assert torch.equal(qkv[1], stage.qkv[0])
    changed = (stage.cache.keys != before).any(-1).nonzero().tolist()
    assert changed == [[block, 0, 4], [block, 0, 5]]


def test_places_that_do_not_fit_are_refused() -> None:
    stage = build(2, 1, 64, [8])
    with pytest.raises(InternalError, match="places"):
        rotate_and_store(
            stage.qkv, stage.cache, stage.rope, stage.positions, stage.tables, num_heads=2
        )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("positions", {"positions": torch.zeros(2, dtype=torch.int64)}),
        ("tables", {"tables": torch.zeros(3, 1, dtype=torch.int32)}),
        ("qkv", {"qkv": torch.zeros(2, 7)}),
        ("num_heads", {"num_heads": 3}),
        ("rope", {"rope": (torch.zeros(9, 33), torch.zeros(9, 33))}),
        ("rope", {"rope": (torch.zeros(9, 32), torch.zeros(9, 31))}),
        ("norms of heads", {"heads": HeadOptions(q_norm=torch.zeros(64))}),
        ("norms of heads", {"heads": HeadOptions(q_norm=torch.zeros(64), k_norm=torch.zeros(32))}),
        ("cache", {"cache": PagedCache(torch.zeros(4, 2, 16, 64), torch.zeros(4, 2, 16, 65))}),
    ],
)
def test_operands_that_do_not_fit_are_refused(name: str, change: dict[str, object]) -> None:
    stage = build(2, 2, 64, [1, 2])._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=name):
        run(stage, WHOLE)


def test_vector_units_serve_one_head_of_a_group_only() -> None:
    with pytest.raises(InternalError, match="choice"):
        run(build(4, 2, 64, [1]), WHOLE._replace(uses_dot=False))


def test_every_stored_choice_of_attention_can_be_launched() -> None:
    for num_kv_heads, choices in load_table().items():
        for num_sequences, choice in choices.items():
            assert choose_attention(num_sequences, num_kv_heads) == choice
            assert 1 <= choice.splits <= 64
            assert choice.uses_dot
            assert choice.block_t % BLOCK_SIZE == 0
            assert choice.ahead >= 0


def test_a_measured_choice_serves_smaller_batches_and_the_rule_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "load_table", lambda: {8: {4: WHOLE, 16: SPLIT}})
    assert choose_attention(3, 8) == choose_attention(4, 8) == WHOLE
    assert choose_attention(5, 8) == SPLIT
    assert choose_attention(17, 8) == default_choice(17, 8)
    assert choose_attention(4, 40) == default_choice(4, 40)


def test_candidates_are_few_and_can_be_launched() -> None:
    for num_kv_heads, num_sequences in itertools.product((8, 40), (1, 2, 4, 8, 16, 32, 64, 128)):
        candidates = list(attention_candidates(num_sequences, num_kv_heads))
        assert 1 <= len(set(candidates)) == len(candidates) <= 66
        for choice in candidates:
            assert choice.splits <= 64
            assert choice.block_t % BLOCK_SIZE == 0
            assert (
                choice.num_stages == 1
                or choice.splits * choice.block_t <= 1024
                or (not choice.is_early)
            )


def test_blocks_that_do_not_divide_each_other_are_refused() -> None:
    with pytest.raises(InternalError, match="choice"):
        run(build(2, 2, 64, [20]), WHOLE._replace(block_t=24))


@pytest.mark.parametrize(("num_sequences", "num_kv_heads"), [(1, 1), (1, 40), (64, 8), (256, 40)])
def test_the_grid_never_outgrows_what_can_be_merged(num_sequences: int, num_kv_heads: int) -> None:
    assert 1 <= choose_attention(num_sequences, num_kv_heads).splits <= 64
