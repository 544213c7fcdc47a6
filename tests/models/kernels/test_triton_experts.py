from __future__ import annotations

import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.config import Experts, ModelConfig
from hybridgen.models.cuda.expert_buffers import expert_buffer_bytes
from hybridgen.models.cuda.layers import FeedForward, TorchLayers
from hybridgen.models.cuda.rope_tables import RopeTables
from hybridgen.models.cuda.triton_layers import TritonLayers
from hybridgen.models.cuda.weights import load_device_weights
from hybridgen.models.reference import rms_norm
from tests.models.expert_weights import MLP, SHAPES, mixed
from tests.models.kernels.oracles import relative_error
from tests.models.tiny_model import random_tensors, tiny_config

CPU = torch.device("cpu")
ROPE = (torch.ones(4, 16), torch.zeros(4, 16))
ROPES = RopeTables(ROPE, ROPE)
MAX_ROWS = 12


def config_of(experts: Experts, **changes: object) -> ModelConfig:
    return tiny_config(hidden_size=40, num_layers=1, num_heads=2, experts=experts, **changes)


def block_of(
    config: ModelConfig, tensors: dict[str, torch.Tensor], *, is_int8: bool = False
) -> FeedForward:
    weights = load_device_weights(
        config, tensors, torch.float32, CPU, lambda _: None, is_int8=is_int8
    )
    return weights.layers[0].feed_forward


def oracle(config: ModelConfig, tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    assert config.experts is not None
    norm = tensors["model.layers.0.post_attention_layernorm.weight"].double()
    weights = {n.removeprefix(MLP): t for n, t in tensors.items() if n.startswith(MLP)}
    return mixed(config.experts, weights, rms_norm(x.double(), norm, config.rms_norm_eps))


def inputs(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, 40, generator=torch.Generator().manual_seed(num_rows))


@pytest.mark.parametrize(
    ("experts", "num_rows"),
    [(SHAPES[0], 1), (SHAPES[0], 5), (SHAPES[1], 3), (SHAPES[2], 2), (SHAPES[3], 3)],
)
def test_a_block_of_experts_is_added_as_the_float64_sum(experts: Experts, num_rows: int) -> None:
    config = config_of(experts)
    tensors, x = random_tensors(config), inputs(num_rows)
    block, right = block_of(config, tensors), x + oracle(config, tensors, x)
    layers = TritonLayers(config, ROPES, [1, MAX_ROWS], torch.float32)
    for operations in (layers, TorchLayers(config, ROPES)):
        hidden = x.clone()
        operations.mix(hidden, block, hidden, hidden)
        assert relative_error(hidden, right) < 1e-6


def test_idle_rows_choose_nobody_and_change_nobody() -> None:
    config = config_of(SHAPES[3])
    tensors, x = random_tensors(config), inputs(4)
    block = block_of(config, tensors)
    positions = torch.tensor([3, -1, 0, -1], dtype=torch.int32)
    busy = positions >= 0
    right = oracle(config, tensors, x)[busy]
    layers = TritonLayers(config, ROPES, [MAX_ROWS], torch.float32)
    for operations in (layers, TorchLayers(config, ROPES)):
        out = torch.full_like(x, torch.nan)
        operations.mix(x, block, out, None, positions)
        assert relative_error(out[busy], right) < 1e-6
        assert bool(out.isfinite().all())


def test_int8_experts_equal_those_of_plain_torch_and_the_router_stays_whole() -> None:
    config = config_of(SHAPES[3])
    tensors, x = random_tensors(config), inputs(4)
    block = block_of(config, tensors, is_int8=True)
    assert block.gate_up.weight.dtype == block.down.weight.dtype == torch.int8
    assert block.routing is not None
    assert block.routing.router.weight.dtype == torch.float32
    out, wanted = (torch.full_like(x, torch.nan) for _ in range(2))
    TritonLayers(config, ROPES, [MAX_ROWS], torch.float32, is_int8=True).mix(x, block, out)
    TorchLayers(config, ROPES).mix(x, block, wanted)
    assert relative_error(out, wanted.double()) < 1e-6
    assert relative_error(out, oracle(config, tensors, x)) < 0.02


def test_a_norm_behind_the_block_comes_before_the_residual() -> None:
    config = config_of(SHAPES[0], has_post_norms=True)
    block, x = block_of(config, random_tensors(config)), inputs(3)
    wanted, hidden = x.clone(), x.clone()
    TorchLayers(config, ROPES).mix(wanted, block, wanted, wanted)
    TritonLayers(config, ROPES, [MAX_ROWS], torch.float32).mix(hidden, block, hidden, hidden)
    assert relative_error(hidden, wanted.double()) < 1e-6


def test_the_bytes_of_the_plan_are_those_of_the_buffers() -> None:
    for experts in SHAPES:
        config = config_of(experts)
        layers = TritonLayers(config, ROPES, [1, MAX_ROWS], torch.float16)
        assert layers._experts is not None
        taken = sum(buffer.nbytes for buffer in layers._experts._buffers.values())
        assert taken == expert_buffer_bytes(experts, config.hidden_size, MAX_ROWS, 2)


def test_more_rows_than_announced_and_plain_blocks_are_refused() -> None:
    config = config_of(SHAPES[0])
    block = block_of(config, random_tensors(config))
    layers = TritonLayers(config, ROPES, [2], torch.float32)
    with pytest.raises(InternalError, match="limit 2"):
        layers.mix(inputs(3), block, inputs(3))
    plain = block._replace(routing=None)
    for operations in (layers, TorchLayers(config, ROPES)):
        with pytest.raises(InternalError, match="experts"):
            operations.mix(inputs(2), plain, inputs(2))
