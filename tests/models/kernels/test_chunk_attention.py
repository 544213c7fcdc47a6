"""Chunks of prompts with windows and caps, by the kernel, against float64."""

from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.chunk_attention import attend_chunks
from hybridgen.models.kernels.head_options import HeadOptions
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.reference import attention
from tests.models.kernels.oracles import relative_error

BLOCK_SIZE, CONTEXT = 16, 512
OPTIONS = [
    HeadOptions(window=1),
    HeadOptions(window=10),
    HeadOptions(window=64, scale=0.3),
    HeadOptions(window=100),
    HeadOptions(softcap=2.0),
    HeadOptions(window=70, softcap=3.0),
]


class Stage:
    """Rotated rows of one prompt: all of them, and those before ``start`` in the cache."""

    def __init__(self, sizes: tuple[int, int, int], start: int, length: int) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = sizes
        generator = torch.Generator().manual_seed(start + length)
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.rows = torch.randn(start + length, width, generator=generator)
        self.start, self.length = start, length
        num_blocks = start // BLOCK_SIZE + 1
        lead = (num_blocks + 1, self.num_kv_heads, BLOCK_SIZE, self.head_dim)
        self.cache = PagedCache(torch.full(lead, torch.nan), torch.full(lead, torch.nan))
        self.blocks = torch.randperm(num_blocks, generator=generator).int()
        for position in range(start):
            block = int(self.blocks[position // BLOCK_SIZE])
            for pages, rows in zip(self.cache, self.heads()[1:], strict=True):
                pages[block, :, position % BLOCK_SIZE] = rows[position]

    def heads(self) -> tuple[torch.Tensor, ...]:
        sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        return torch.split(self.rows.view(len(self.rows), -1, self.head_dim), sizes, 1)

    def wanted(self, options: HeadOptions) -> torch.Tensor:
        query, keys, values = (x.double() for x in self.heads())
        return attention(
            query[self.start :], keys, values,
            scale=options.scale, cap=options.softcap, window=options.window,
        ).flatten(1)  # fmt: skip

    def attend(
        self, qkv: torch.Tensor, out: torch.Tensor, offsets: list[int], options: HeadOptions
    ) -> None:
        ends = torch.tensor(offsets, dtype=torch.int32)
        attend_chunks(
            qkv, self.cache, out, ends, int(ends.diff().max()),
            (self.start, self.blocks) if self.start else None,
            num_heads=self.num_heads, heads=options, num_positions=CONTEXT,
        )  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("start", "length"), [(0, 5), (0, 150), (37, 70), (128, 64), (200, 1)])
def test_a_chunk_equals_the_oracle(options: HeadOptions, start: int, length: int) -> None:
    stage = Stage((2, 1, 32), start, length)
    wanted = stage.wanted(options)
    first = max(start - options.window + 1, 0) if options.window else 0
    for place in range(first):  # what no query sees may be anyone's
        for pages in stage.cache:
            pages[stage.blocks[place // BLOCK_SIZE], :, place % BLOCK_SIZE] = torch.nan
    stage.blocks[: first // BLOCK_SIZE] = 2**24  # there is no such block
    around = torch.full((3, stage.rows.shape[1]), torch.nan)
    qkv = torch.cat([around, stage.rows[start:], around])
    out = torch.full((length + 6, 64), torch.nan)
    stage.attend(qkv, out, [3, 3 + length], options)
    assert relative_error(out[3 : 3 + length], wanted) < 1e-6
    assert out[:3].isnan().all()
    assert out[3 + length :].isnan().all()


@pytest.mark.parametrize("sizes", [(6, 2, 80), (2, 2, 96), (4, 1, 256)])
@pytest.mark.parametrize("start", [0, 40])
def test_heads_of_all_kinds_equal_the_oracle(sizes: tuple[int, int, int], start: int) -> None:
    stage, options = Stage(sizes, start, 30), HeadOptions(window=25, softcap=4.0)
    out = torch.full((30, sizes[0] * sizes[2]), torch.nan)
    stage.attend(stage.rows[start:], out, [0, 30], options)
    assert relative_error(out, stage.wanted(options)) < 1e-6


def test_chunks_see_nothing_of_their_neighbours() -> None:
    options = HeadOptions(window=9)
    stages = [Stage((2, 1, 32), 0, length) for length in (40, 1, 90)]
    qkv = torch.cat([stage.rows for stage in stages])
    out = torch.full((131, 64), torch.nan)
    stages[0].attend(qkv, out, [0, 40, 41, 131], options)
    wanted = torch.cat([stage.wanted(options) for stage in stages])
    assert relative_error(out, wanted) < 1e-6


def test_operands_that_do_not_fit_are_refused() -> None:
    stage, options = Stage((2, 1, 32), 20, 10), HeadOptions(window=9)
    out = torch.zeros(10, 64)
    with pytest.raises(InternalError, match="past"):
        stage.attend(stage.rows[20:], out, [0, 4, 10], options)
    with pytest.raises(InternalError, match="qkv"):
        stage.attend(stage.rows[20:, 1:], out, [0, 10], options)
    with pytest.raises(InternalError, match="out"):
        stage.attend(stage.rows[20:], out[:9], [0, 10], options)
