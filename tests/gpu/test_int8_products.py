"""Products with INT8 weights on a device against float64, of few columns more than whole tiles."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
if torch.cuda.is_available():
    from hybridgen.models.kernels.linear import LinearWeights, linear, linear_needs, scratch_needs
    from hybridgen.models.kernels.linear_choice import LinearChoice
    from hybridgen.models.kernels.workspace import Workspace

CHOICES = [(8, 512, 1, 1), (4, 1024, 1, 1), (8, 1024, 2, 3), (16, 2048, 4, 1), (2, 4096, 8, 1)]


def made(x: torch.Tensor, weights: LinearWeights, choice: LinearChoice, **more: bool) -> float:
    """‖out − reference‖ / ‖reference‖, float32 results."""
    num_tokens, shape = len(x), weights.shape
    floats, counters = linear_needs(num_tokens, shape, choice)
    workspace = Workspace(
        "cuda",
        num_floats=floats,
        num_counters=counters,
        num_elements=scratch_needs(num_tokens, shape),
    )
    out = torch.full((num_tokens, shape.num_rows), torch.nan, device="cuda")
    linear(x, weights, out, workspace=workspace, choice=choice, **more)
    wanted = x.double() @ weights.weight.double().T * weights.scales.double()
    if weights.is_gated:
        gates, ups = wanted.chunk(2, -1)
        wanted = torch.nn.functional.silu(gates) * ups
    return float((out.double() - wanted).norm() / wanted.norm())


def operands(num_tokens: int, num_rows: int, size: int) -> tuple[torch.Tensor, LinearWeights]:
    generator = torch.Generator("cuda").manual_seed(size)
    x = torch.randn(num_tokens, size, device="cuda", generator=generator)
    x[:, ::97] *= 100
    weight = torch.randint(-127, 128, (num_rows, size), device="cuda", generator=generator)
    scales = torch.rand(num_rows, device="cuda", generator=generator) * 1e-4
    return x.bfloat16(), LinearWeights(weight.to(torch.int8), scales=scales)


@pytest.mark.parametrize("blocks", CHOICES)
@pytest.mark.parametrize("size", [4096, 5120, 6000])
@pytest.mark.parametrize("is_gated", [False, True])
def test_one_token_in_integers_equals_float64(
    blocks: tuple[int, int, int, int], size: int, is_gated: bool
) -> None:
    block_n, block_k, num_warps, num_stages = blocks
    choice = LinearChoice("limb_gemv", block_n, block_k, num_warps=num_warps, num_stages=num_stages)
    x, weights = operands(1, 1030, size)
    weights = weights._replace(is_gated=is_gated)
    assert made(x, weights, choice) < 1e-4
    assert made(x, weights, choice, is_chained=True) < 1e-4


@pytest.mark.parametrize("num_tokens", [1, 7, 64])
@pytest.mark.parametrize("blocks", [(64, 128, 8, 1, 4), (64, 256, 8, 3, 3), (128, 128, 32, 2, 3)])
@pytest.mark.parametrize("size", [4096, 6000])
@pytest.mark.parametrize("is_gated", [False, True])
def test_some_tokens_in_integers_equal_float64(
    num_tokens: int, blocks: tuple[int, int, int, int, int], size: int, is_gated: bool
) -> None:
    choice = LinearChoice("limb_dot", *blocks[:4], num_stages=blocks[4], ahead=256)
    x, weights = operands(num_tokens, 1030, size)
    weights = weights._replace(is_gated=is_gated)
    assert made(x, weights, choice) < 1e-4
    assert made(x, weights, choice, is_chained=True) < 1e-4
