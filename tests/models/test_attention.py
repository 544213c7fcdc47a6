from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models import reference
from hybridgen.models.attention import AttentionShape, PagedBatch, attend
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.rope import build_rope_table
from tests.models.tiny_model import relative_error, tiny_config

SHAPES = [
    (4, 4, 32),
    (6, 2, 64),
    (9, 3, 64),
    (14, 1, 96),
    (8, 2, 128),
    (3, 1, 16),
    (4, 2, 80),
    (2, 1, 256),
]
NUM_BLOCKS = 24
OPTIONS = {
    "scale": HeadOptions(scale=0.5),
    "softcap": HeadOptions(softcap=1.5),
    "window_1": HeadOptions(window=1),
    "window_16": HeadOptions(window=16),
    "window_33": HeadOptions(window=33),
    "window_longer": HeadOptions(window=500),
    "norms": HeadOptions(q_norm=torch.linspace(0.5, 2, 64), k_norm=torch.linspace(3, 1, 64)),
    "all": HeadOptions(
        scale=0.1,
        softcap=3.0,
        window=40,
        q_norm=torch.linspace(0.5, 2, 64),
        k_norm=torch.linspace(3, 1, 64),
        epsilon=1e-3,
    ),
}


class Sequence:
    """Random q, k, v of one sequence, its reference output, and its paged run."""

    def __init__(
        self,
        heads: tuple[int, int, int],
        num_tokens: int,
        seed: int = 0,
        *,
        rotary_dim: int = 0,
        options: HeadOptions = PLAIN_HEADS,
    ) -> None:
        self.options = options
        self.shape = AttentionShape(*heads)
        num_heads, num_kv_heads, dim = heads
        generator = torch.Generator().manual_seed(seed)
        self.qkv = torch.randn(
            num_tokens, (num_heads + 2 * num_kv_heads) * dim, generator=generator
        )
        table = build_rope_table(
            tiny_config(
                num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=dim, rotary_dim=rotary_dim
            ),
            256,
        )
        self.rope = torch.from_numpy(table.cosines), torch.from_numpy(table.sines)
        blocks = np.random.default_rng(seed).permutation(NUM_BLOCKS)[: -(-num_tokens // 16)]
        self.table = torch.tensor(blocks[None], dtype=torch.int32)

    def expected(self, kv_dtype: torch.dtype) -> torch.Tensor:
        num_heads, num_kv_heads, dim = self.shape
        rope = [table[: len(self.qkv)].double() for table in self.rope]
        heads = self.qkv.double().view(len(self.qkv), -1, dim)
        q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        options = self.options
        if options.q_norm is not None and options.k_norm is not None:
            q = reference.rms_norm(q, options.q_norm.double(), options.epsilon)
            k = reference.rms_norm(k, options.k_norm.double(), options.epsilon)
        q, k = reference.rotate(q, *rope), reference.rotate(k, *rope)
        if kv_dtype is torch.bfloat16:  # through float32, as the kernel rounds
            k, v = k.float().bfloat16().double(), v.bfloat16().double()
        return reference.attention(
            q, k, v, scale=options.scale, cap=options.softcap, window=options.window
        ).flatten(-2)

    def run(
        self,
        pool: ComputePool,
        cache: tuple[torch.Tensor, torch.Tensor],
        cuts: tuple[int, ...] = (),
    ) -> torch.Tensor:
        """Blocks before the window are made garbage again before each chunk."""
        edges = [0, *cuts, len(self.qkv)]
        parts = []
        for start, end in pairwise(edges):
            num_past = max(start + 1 - self.options.window, 0) // 16 if self.options.window else 0
            for part in cache:
                part[self.table[0, :num_past].long()] = torch.nan
            positions = torch.arange(start, end, dtype=torch.int32)
            batch = PagedBatch(positions, self.table, end - start)
            qkv = self.qkv[start:end].clone()
            parts.append(
                attend(
                    pool,
                    self.shape,
                    qkv,
                    self.rope,
                    batch=batch,
                    cache=cache,
                    heads=self.options,
                )
            )
        return torch.cat(parts)


def garbage_cache(shape: AttentionShape, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What unused memory may hold at worst."""
    lead = (NUM_BLOCKS, shape.num_kv_heads)
    keys = torch.full((*lead, shape.head_dim, 16), float("nan"), dtype=dtype)
    return keys, torch.full((*lead, 16, shape.head_dim), float("nan"), dtype=dtype)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", SHAPES)
@pytest.mark.parametrize("num_tokens", [1, 17, 150])
def test_prefill_equals_the_reference(heads, num_tokens, dtype):
    pool = ComputePool(2)
    sequence = Sequence(heads, num_tokens)
    found = sequence.run(pool, garbage_cache(sequence.shape, dtype))
    # A product that falls between two bfloat16 numbers may round either way.
    limit = 2e-6 if dtype is torch.float32 else 2e-3
    assert relative_error(found, sequence.expected(dtype)) < limit
    pool.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", SHAPES)
def test_chunks_and_single_tokens_give_the_bits_of_one_prefill(heads, dtype):
    pool = ComputePool(2)
    sequence = Sequence(heads, 70)
    whole = sequence.run(pool, garbage_cache(sequence.shape, dtype))
    for cuts in ((16, 32), (1, 2, 33, 65), tuple(range(1, 70))):
        found = sequence.run(pool, garbage_cache(sequence.shape, dtype), cuts)
        assert torch.equal(found, whole)
    pool.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("rotary_dim", [0, 24])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_equal_the_reference_and_blocks_before_a_window_are_not_read(name, rotary_dim):
    pool = ComputePool(1)
    sequence = Sequence((6, 2, 64), 90, rotary_dim=rotary_dim, options=OPTIONS[name])
    whole = sequence.run(pool, garbage_cache(sequence.shape, torch.float32))
    assert relative_error(whole, sequence.expected(torch.float32)) < 2e-6
    for cuts in ((1, 2, 33, 64), (*range(20, 60), 75)):
        found = sequence.run(pool, garbage_cache(sequence.shape, torch.float32), cuts)
        assert torch.equal(found, whole)
    pool.close()


def test_sequences_of_different_length_decode_together_as_they_do_alone(pool):
    heads = (6, 2, 64)
    shape = AttentionShape(*heads)
    cache = garbage_cache(shape, torch.float32)
    lengths = [1, 16, 17, 50]
    sequences = [Sequence(heads, length, seed) for seed, length in enumerate(lengths)]
    tables = torch.full((4, 4), 0, dtype=torch.int32)
    free = iter(range(NUM_BLOCKS))
    for row, sequence in enumerate(sequences):
        for i in range(sequence.table.shape[1]):
            tables[row, i] = next(free)
        sequence.table = tables[row : row + 1].clone()
        sequence.run(pool, cache, (len(sequence.qkv) - 1,) if len(sequence.qkv) > 1 else ())
    expected = torch.stack([sequence.expected(torch.float32)[-1] for sequence in sequences])
    qkv = torch.stack([sequence.qkv[-1] for sequence in sequences])
    batch = PagedBatch(torch.tensor(lengths, dtype=torch.int32) - 1, tables, 1)
    found = attend(pool, shape, qkv, sequences[0].rope, batch=batch, cache=cache)
    assert relative_error(found, expected) < 2e-6


@pytest.mark.usefixtures("kernels")
def test_large_scores_neither_overflow_nor_vanish():
    pool = ComputePool(1)
    sequence = Sequence((2, 1, 32), 40)
    sequence.qkv *= 40
    found = sequence.run(pool, garbage_cache(sequence.shape, torch.float32))
    assert relative_error(found, sequence.expected(torch.float32)) < 1e-4
    pool.close()


def test_arguments_that_do_not_fit_are_refused():
    pool = ComputePool(1)
    sequence = Sequence((2, 1, 32), 20)
    cache = garbage_cache(sequence.shape, torch.float32)
    sequence.table = torch.tensor([[0, NUM_BLOCKS]], dtype=torch.int32)
    with pytest.raises(InternalError, match="tables"):
        sequence.run(pool, cache)
    sequence.table = torch.tensor([[0]], dtype=torch.int32)
    with pytest.raises(InternalError, match="position"):
        sequence.run(pool, cache)
    sequence = Sequence((2, 1, 32), 20, options=HeadOptions(q_norm=torch.ones(32)))
    with pytest.raises(InternalError, match="norms"):
        sequence.run(pool, cache)
    pool.close()
