"""Attention of pieces on the device, by whichever library was chosen, against float64."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from hybridgen.models.device_engine import PromptChunk
from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.reference import reference_logits, softcap
from tests.models.tiny_model import random_ids, random_tensors, relative_error, tiny_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
if torch.cuda.is_available():
    from hybridgen.models.cuda.attention_calls import CudnnCalls, FlashCalls
    from hybridgen.models.cuda.memory_plan import EngineShape
    from hybridgen.models.cuda.piece_inputs import PieceInputs, PieceNumbers
    from hybridgen.models.cuda.prompt_attention import PromptAttention
    from hybridgen.models.kernels.paged_cache import PagedCache
    from tests.gpu.direct_engine import DEVICE, DirectEngine, make_engine

MAX_CHUNK, CONTEXT, BLOCK = 2048, 8192, 16
OPTIONS = {
    "window": HeadOptions(window=1000),
    "cap": HeadOptions(softcap=2.0),
    "window and cap": HeadOptions(window=37, softcap=2.0),
}
PIECES = {
    "one": [(0, 2048)],
    "one that does not fill it": [(0, 1500)],
    "short": [(0, 33)],
    "equal": [(0, 512)] * 4,
    "of all lengths": [(0, 100), (0, 700), (0, 3), (0, 1200)],
    "goes on": [(2048, 4096)],
    "goes on after three": [(6144, 8000)],
    "goes on anywhere": [(2500, 3400), (0, 300), (100, 140), (5000, 5700)],
}


@pytest.fixture(
    scope="module", params=[(32, 8, 128), (4, 4, 128), (6, 2, 64), (8, 4, 256)], ids=str
)
def prompt(request):
    """A prompt's rotated queries, keys and values, and attention prepared for it."""
    num_heads, num_kv_heads, head_dim = request.param
    config = tiny_config(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, max_position=CONTEXT
    )
    shape = EngineShape(1, CONTEXT, MAX_CHUNK, 8, BLOCK, 2)
    width = (num_heads + 2 * num_kv_heads) * head_dim
    qkv = torch.zeros(MAX_CHUNK, width, dtype=torch.bfloat16, device=DEVICE)
    prompt_attention = PromptAttention(config, shape, qkv)
    started_s = time.monotonic()
    prompt_attention.prepare()
    torch.cuda.synchronize()
    print(f"\nprepared {prompt_attention.calls.__class__.__name__} "
          f"in {time.monotonic() - started_s:.2f} s")  # fmt: skip
    whole = torch.randn(CONTEXT, width, device=DEVICE).bfloat16()
    return config, shape, qkv, prompt_attention, whole


def test_cudnn_works_on_the_devices_that_it_is_meant_for(prompt):
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("no Hopper or newer")
    assert isinstance(prompt[3].calls, CudnnCalls)


@pytest.mark.parametrize("by", ["chosen", "flash", *OPTIONS])
@pytest.mark.parametrize("piece", PIECES)
def test_attention_of_a_piece_equals_float64(prompt, piece, by):
    config, shape, qkv, prompt_attention, whole = prompt
    chosen = prompt_attention.calls
    numbers = PieceNumbers(shape, DEVICE, is_pinned=False)
    inputs = PieceInputs(shape, numbers)
    order = np.random.default_rng(1).permutation(CONTEXT // BLOCK).astype(np.int32)
    chunks = [
        PromptChunk(np.zeros(stop - start, np.int32), start, order[: -(-stop // BLOCK)])
        for start, stop in PIECES[piece]
    ]
    layout = inputs.fill(chunks)
    inputs.send()
    qkv.copy_(whole[:MAX_CHUNK])
    first = 0
    for start, stop in PIECES[piece]:
        qkv[first : first + stop - start] = whole[start:stop]
        first += stop - start
    sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    query, keys, values = whole.view(CONTEXT, -1, config.head_dim).split(sizes, 1)
    cache = PagedCache(*(_pages(x, order) for x in (keys, values)))
    prompt_attention.calls = FlashCalls(config.score_scale) if by == "flash" else chosen
    heads = OPTIONS.get(by, PLAIN_HEADS)
    found = prompt_attention.attend(layout, cache, heads)
    prompt_attention.calls = chosen
    assert found.shape == (layout.num_rows, config.q_size)
    assert torch.isfinite(found).all()
    first = 0
    for start, stop in PIECES[piece]:
        num_rows = stop - start
        some = sorted({*range(min(num_rows, 20)), *range(max(0, num_rows - 100), num_rows)})
        rows = torch.tensor(some, device=DEVICE)
        wanted = _attend(query[start + rows], keys[:stop], values[:stop], start + rows, heads)
        # Three roundings to bf16, of each part and of both together.
        assert relative_error(found[first + rows].cpu(), wanted.cpu()) < 1e-2
        first += num_rows


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    heads: HeadOptions,
) -> torch.Tensor:
    """[n, num_heads · head_dim] in float64, each query over what it sees."""
    group = query.shape[1] // keys.shape[1]
    wide_keys, wide_values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("nhd,mhd->hnm", query.double(), wide_keys) * query.shape[2] ** -0.5
    scores = softcap(scores, heads.softcap)
    ages = positions[:, None] - torch.arange(len(keys), device=DEVICE)
    is_hidden = (ages < 0) | (ages >= (heads.window or len(keys)))
    weights = scores.masked_fill(is_hidden, -torch.inf).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, wide_values).flatten(1)


def _pages(heads: torch.Tensor, order: np.ndarray) -> torch.Tensor:
    """[num_blocks, num_kv_heads, BLOCK, head_dim], position 0 in the block order[0]."""
    pages = torch.empty(len(order), heads.shape[1], BLOCK, heads.shape[2],
                        dtype=heads.dtype, device=DEVICE)  # fmt: skip
    in_order = heads.unflatten(0, (-1, BLOCK)).transpose(1, 2)
    pages[torch.from_numpy(order).long().to(DEVICE)] = in_order
    return pages


def test_a_long_prompt_in_pieces_equals_the_reference():
    config = tiny_config(head_dim=64, max_position=4096)
    tensors = {name: x.bfloat16() for name, x in random_tensors(config).items()}
    engine = make_engine(
        config, tensors, dtype=torch.bfloat16, max_chunk=1024, num_blocks=256
    )  # fmt: skip
    ids = random_ids(config, 2900)
    table = np.random.default_rng(2).permutation(256)[: -(-len(ids) // BLOCK)].astype(np.int32)
    logits = DirectEngine(engine).prefill(ids, table, (1024, 2048))
    right = reference_logits(config, tensors, torch.from_numpy(ids).long())[-1]
    assert relative_error(logits, right) < 5e-2
