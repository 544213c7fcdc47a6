"""A block of experts on the device: in a graph, chained, against plain torch in float32."""

from __future__ import annotations

import pytest
import torch

from hybridgen.models.config import Experts, ModelConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
if torch.cuda.is_available():
    from hybridgen.models.cuda.layers import FeedForward, Projection, TorchLayers
    from hybridgen.models.cuda.rope_tables import rope_tables
    from hybridgen.models.cuda.streams import make_stream
    from hybridgen.models.cuda.triton_layers import TritonLayers
    from hybridgen.models.cuda.weights import random_device_weights

MIXTRAL = Experts(num_experts=8, num_chosen=2, size=1792)
QWEN3 = Experts(num_experts=128, num_chosen=8, size=96)
SINGLE = Experts(num_experts=1, num_chosen=1, size=96)
QWEN2 = Experts(num_experts=60, num_chosen=4, size=176, shared_size=704, is_share_normalized=False)


def config_of(experts: Experts) -> ModelConfig:
    return ModelConfig(
        architecture="mixtral", vocab_size=64, num_layers=1, hidden_size=1024,
        intermediate_size=64, num_heads=8, num_kv_heads=2, head_dim=128, max_position=64,
        experts=experts,
    )  # fmt: skip


class Block:
    """One block with random weights, by our kernels and by plain torch."""

    def __init__(self, experts: Experts, num_rows: int, *, is_int8: bool = False) -> None:
        device = torch.device("cuda")
        self.config = config_of(experts)
        ropes = rope_tables(self.config, 64, device)
        weights = random_device_weights(self.config, torch.bfloat16, device, is_int8=is_int8)
        self.block = weights.layers[0].feed_forward
        self.layers = TritonLayers(
            self.config, ropes, [num_rows], torch.bfloat16, is_int8=is_int8, is_chained=True
        )
        self.plain = TorchLayers(self.config, ropes)
        generator = torch.Generator(device).manual_seed(1)
        self.x = torch.randn(num_rows, 1024, device=device, generator=generator).bfloat16()

    def mixed(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.full_like(self.x, torch.nan)
        self.layers.mix(self.x, self.block, out, None, positions)
        return out

    def expected(self) -> torch.Tensor:
        out = torch.full_like(self.x, torch.nan, dtype=torch.float32)
        self.plain.mix(self.x.float(), _wide(self.block), out)
        return out


def _wide(block: FeedForward) -> FeedForward:
    """The same numbers in float32; INT8 weights are widened by their user."""
    routing = block.routing
    if routing is not None:
        shared = None if routing.shared is None else _wide(routing.shared)
        routing = routing._replace(router=_wide_projection(routing.router), shared=shared)
    return FeedForward(_wide_projection(block.gate_up), _wide_projection(block.down), routing)


def _wide_projection(part: Projection) -> Projection:
    return part if part.scales is not None else part._replace(weight=part.weight.float())


def error(out: torch.Tensor, right: torch.Tensor) -> float:
    return float((out.float() - right).norm() / right.norm())


@pytest.mark.parametrize("experts", [MIXTRAL, QWEN2, QWEN3, SINGLE])
@pytest.mark.parametrize("num_rows", [1, 3, 64, 700])
@pytest.mark.parametrize("is_int8", [False, True])
def test_a_block_of_experts_equals_plain_torch(
    experts: Experts, num_rows: int, is_int8: bool
) -> None:
    block = Block(experts, num_rows, is_int8=is_int8)
    out, right = block.mixed(), block.expected()
    # A logit rounded another way may take another expert of nearly the same share.
    errors = (out.float() - right).norm(dim=1) / right.norm(dim=1)
    assert float(errors.median()) < 0.01
    assert float((errors > 0.02).float().mean()) <= 0.02


def test_a_captured_block_follows_its_input() -> None:
    block = Block(QWEN3, 4)
    positions = torch.tensor([1, -1, 0, 5], dtype=torch.int32, device="cuda")
    out = torch.zeros_like(block.x)
    stream = make_stream(torch.device("cuda"))
    with torch.cuda.stream(stream):
        block.layers.mix(block.x, block.block, out, None, positions)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        block.layers.mix(block.x, block.block, out, None, positions)
    for turn in range(3):
        block.x.copy_(torch.randn_like(block.x) * (turn + 1))
        positions.copy_(torch.tensor([1, turn - 1, 0, 5], dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        eager = block.mixed(positions)
        assert torch.equal(out, eager)
        busy = positions >= 0
        assert error(out[busy], block.expected()[busy]) < 0.05


def test_a_token_gives_the_same_in_any_company() -> None:
    block = Block(MIXTRAL, 16)
    whole = block.mixed()
    block.x = block.x.flip(0)
    assert torch.equal(block.mixed().flip(0), whole)
