"""INT8 weights: how they are made, what they cost in memory, and what they do to the logits."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from hybridgen.models.config import Experts, ModelConfig
from hybridgen.models.cuda.int8_rows import dequantize_rows, quantize_rows
from hybridgen.models.cuda.layers import TorchLayers, feed_forward
from hybridgen.models.cuda.memory_plan import bytes_of_weights, is_quantized
from hybridgen.models.cuda.rope_tables import rope_tables
from hybridgen.models.cuda.weights import (
    DeviceWeights,
    _Builder,
    load_device_weights,
    random_device_weights,
)
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.reference import reference_logits
from tests.models.tiny_model import random_ids, random_tensors, relative_error, tiny_config

CPU = torch.device("cpu")
EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
SHAPES: list[dict[str, object]] = [
    {},
    {"num_heads": 3, "num_kv_heads": 3, "has_qkv_bias": True, "has_mlp_bias": True},
    {"head_dim": 48, "is_embedding_tied": False, "has_output_bias": True},
    {"experts": Experts(num_experts=5, num_chosen=2, size=40, shared_size=56, dense_layers=[0])},
]


def quantized(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.full(matrix.shape, 99, dtype=torch.int8)
    scales = torch.full((len(matrix),), torch.nan)
    quantize_rows(matrix, values, scales)
    return values, scales


def dequantized_model(
    config: ModelConfig, tensors: dict[str, torch.Tensor]
) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """The model that INT8 weights stand for: its embedding is whole, its output matrix is not."""
    matrices = {n: t for n, t in tensors.items() if is_quantized(n, tuple(t.shape))}
    matrices[LM_HEAD] = tensors.get(LM_HEAD, tensors[EMBEDDING])
    rough = {
        name: dequantize_rows(*quantized(matrix.flatten(0, -2))).view(matrix.shape)
        for name, matrix in matrices.items()
    }
    return msgspec.structs.replace(config, is_embedding_tied=False), {**tensors, **rough}


def decoded(config: ModelConfig, weights: DeviceWeights, ids: np.ndarray) -> torch.Tensor:
    """Logits after all ids, by the operations of a decode step, token after token."""
    layers = TorchLayers(config, rope_tables(config, len(ids), CPU))
    pages = (3, config.num_kv_heads, 16, config.head_dim)
    caches = [PagedCache(torch.zeros(pages), torch.zeros(pages)) for _ in weights.layers]
    hidden, qkv, attended, inner, logits = (
        torch.empty(1, size)
        for size in (
            config.hidden_size,
            config.q_size + 2 * config.kv_size,
            config.q_size,
            config.intermediate_size,
            config.vocab_size,
        )
    )
    blocks = torch.tensor([[0, 1]], dtype=torch.int32)
    for position, token in enumerate(torch.from_numpy(ids)):
        layers.embed(token[None], weights.embedding, hidden)
        for layer, cache in zip(weights.layers, caches, strict=True):
            layers.project(hidden, layer.qkv, qkv)
            layers.attend(qkv, cache, attended, torch.tensor([position]), blocks, heads=layer.heads)
            layers.project(attended, layer.output, hidden, hidden)
            feed_forward(layers, layer.feed_forward, hidden, inner)
    layers.project(hidden, weights.lm_head, logits)
    return logits[0]


def sizes(weights: DeviceWeights) -> int:
    """Bytes of all distinct tensors."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors_in(weights)}.values())


def tensors_in(parts: object) -> list[torch.Tensor]:
    if isinstance(parts, torch.Tensor):
        return [parts]
    if isinstance(parts, (tuple, list)):
        return [tensor for part in parts for tensor in tensors_in(part)]
    return []


def test_a_row_keeps_its_own_scale_however_large_its_neighbours_are():
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(40, 64, generator=generator) * torch.logspace(-6, 6, 40)[:, None]
    values, scales = quantized(matrix)
    assert torch.allclose(scales, matrix.abs().amax(1) / 127)
    assert values.abs().amax(1).tolist() == [127] * 40
    error = (dequantize_rows(values, scales) - matrix).abs().amax(1)
    assert (error <= 0.501 * scales).all()


def test_ties_go_to_even_numbers_and_zeros_stay():
    matrix = torch.tensor([[127.0, 0.5, 1.5, -2.5, -127.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    values, scales = quantized(matrix)
    assert values.tolist() == [[127, 0, 2, -2, -127], [0, 0, 0, 0, 0]]
    assert scales[0] == 1.0
    assert dequantize_rows(values, scales)[1].tolist() == [0.0] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_matrices_are_made_in_chunks_and_left_alone(dtype, monkeypatch):
    monkeypatch.setattr("hybridgen.models.cuda.int8_rows._CHUNK", 100)
    matrix = torch.randn(7, 40).to(dtype)
    before = matrix.clone()
    values, scales = quantized(matrix)
    assert torch.equal(matrix, before)
    for row in range(7):
        assert torch.equal(values[row : row + 1], quantized(matrix[row : row + 1])[0])
    assert relative_error(dequantize_rows(values, scales, dtype), matrix) < 0.01


@pytest.mark.parametrize("changes", SHAPES)
def test_the_devices_model_is_the_one_that_the_weights_stand_for(changes):
    config = tiny_config(**changes)
    tensors, ids = random_tensors(config), random_ids(config, 20)
    weights = load_device_weights(config, tensors, torch.float32, CPU, lambda _: None, is_int8=True)
    right = reference_logits(*dequantized_model(config, tensors), torch.from_numpy(ids).long())
    assert relative_error(decoded(config, weights, ids), right[-1]) < 1e-5


@pytest.mark.parametrize("changes", SHAPES[:3])  # rounded inputs change the choice of experts
def test_logits_and_greedy_choices_stay_close_to_those_of_float32(changes):
    config = tiny_config(**changes)
    tensors = random_tensors(config)
    ids = torch.from_numpy(random_ids(config, 200)).long()
    right = reference_logits(config, tensors, ids)
    rough = reference_logits(*dequantized_model(config, tensors), ids)
    error = (rough - right).abs() / right.std()
    assert error.mean() < 0.012  # 0.008; scales of the neighbouring rows: 0.25
    assert error.max() < 0.09  # 0.06; scales of the neighbouring rows: 1.7
    agreement = (rough.argmax(-1) == right.argmax(-1)).double().mean()
    assert agreement >= 0.96  # 0.97; scales of the neighbouring rows: 0.60 where untied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("changes", SHAPES)
def test_the_bytes_of_the_plan_are_those_of_the_tensors(changes, is_int8, dtype):
    config = tiny_config(**changes)
    weights = random_device_weights(config, dtype, CPU, is_int8=is_int8)
    planned = bytes_of_weights(config, dtype.itemsize, is_int8=is_int8)
    assert sizes(weights) == planned
    if is_int8:
        assert weights.embedding.dtype == dtype
        assert weights.lm_head.weight.dtype == torch.int8


def test_beside_the_weights_there_is_room_for_one_matrix():
    config = tiny_config()
    places = set()

    def fill(name: str, out: torch.Tensor) -> None:
        if out.dim() == 2 and name != EMBEDDING:
            places.add(out.untyped_storage().data_ptr())
        out.fill_(0.5)

    builder = _Builder(config, torch.float32, CPU, fill, is_int8=True)
    builder.build()
    assert len(places) == 1
    assert builder._space.numel() == config.qkv_size * config.hidden_size
