"""Llama weights in the form that the kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from hybridgen.errors import InternalError, UnsupportedModel, WeightsMismatch
from hybridgen.models import _native
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.config import ModelConfig
from hybridgen.models.layers import (
    DTYPE_CODES,
    HALF,
    PackedMatrix,
    panel_bias,
    panel_bytes,
)

Tensors = Mapping[str, torch.Tensor]


class LayerWeights(NamedTuple):
    """One block. Norms and biases are float32."""

    qkv: PackedMatrix
    """[q heads, k heads, v heads] × hidden."""
    output: PackedMatrix
    gate_up: PackedMatrix
    """Paired: gate and up."""
    down: PackedMatrix
    qkv_bias: torch.Tensor | None
    output_bias: torch.Tensor | None
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor


class LlamaWeights(NamedTuple):
    """The whole model."""

    embedding: PackedMatrix
    lm_head: PackedMatrix
    """The embedding itself where both are tied."""
    final_norm: torch.Tensor
    layers: list[LayerWeights]


def check_tensors(config: ModelConfig, tensors: Tensors) -> None:
    """Do the tensors fit the configuration and the kernels?

    Raises:
        WeightsMismatch: a tensor is missing or has another shape.
        UnsupportedModel: the kernels cannot do this shape.
    """
    for name, shape in config.weight_shapes().items():
        tensor = tensors.get(name)
        if tensor is None or tuple(tensor.shape) != shape:
            raise WeightsMismatch(
                f"tensor {name} does not fit the model's configuration",
                tensor=name,
                value="missing" if tensor is None else str(list(tensor.shape)),
                limit=str(list(shape)),
                remedy="Fetch or convert the model again",
            )
    if config.head_dim % HALF:
        raise UnsupportedModel(
            "the size of an attention head is not a multiple of 16", value=config.head_dim
        )


def pack_weights(
    pool: ComputePool, config: ModelConfig, tensors: Tensors, dtype: torch.dtype
) -> LlamaWeights:
    """Copy the weights into panels; ``tensors`` can be dropped afterwards.

    Raises:
        WeightsMismatch, UnsupportedModel: see ``check_tensors``.
    """
    check_tensors(config, tensors)
    return _Packer(pool, config, tensors, dtype).pack()


class _Packer:
    """Fills one arena, matrix after matrix."""

    def __init__(
        self, pool: ComputePool, config: ModelConfig, tensors: Tensors, dtype: torch.dtype
    ) -> None:
        if dtype not in DTYPE_CODES:
            raise InternalError("weights are float32 or bfloat16", value=str(dtype))
        self._pool = pool
        self._config = config
        self._tensors = tensors
        self._dtype = dtype
        self._arena = torch.empty(self._arena_bytes(), dtype=torch.uint8)
        self._used = 0
        # Advice: without huge pages the same works, a little slower.
        _native.advise_huge(self._arena.data_ptr(), len(self._arena))

    def pack(self) -> LlamaWeights:
        config = self._config
        embedding = self._matrix(self._weight("model.embed_tokens.weight"))
        layers = [self._layer(f"model.layers.{i}.") for i in range(config.num_layers)]
        is_tied = config.is_embedding_tied
        lm_head = embedding if is_tied else self._matrix(self._weight("lm_head.weight"))
        return LlamaWeights(embedding, lm_head, self._vector("model.norm.weight"), layers)

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [attention + name for name in ("q_proj.", "k_proj.", "v_proj.")]
        gate, up, down = (mlp + name for name in ("gate_proj.", "up_proj.", "down_proj."))
        qkv_bias = gate_up_bias = down_bias = output_bias = None
        if config.has_qkv_bias:
            qkv_bias = panel_bias(torch.cat([self._vector(name + "bias") for name in qkv]))
        if config.has_output_bias:
            output_bias = panel_bias(self._vector(attention + "o_proj.bias"))
        if config.has_mlp_bias:
            gate_up_bias = panel_bias(self._vector(gate + "bias"), self._vector(up + "bias"))
            down_bias = panel_bias(self._vector(down + "bias"))
        return LayerWeights(
            qkv=self._matrix(torch.cat([self._weight(name + "weight") for name in qkv])),
            output=self._matrix(self._weight(attention + "o_proj.weight")),
            gate_up=self._matrix(self._weight(gate + "weight"), self._weight(up + "weight")),
            down=self._matrix(self._weight(down + "weight")),
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            attention_norm=self._vector(prefix + "input_layernorm.weight"),
            mlp_norm=self._vector(prefix + "post_attention_layernorm.weight"),
        )

    def _weight(self, name: str) -> torch.Tensor:
        return self._tensors[name].to(self._dtype).contiguous()

    def _vector(self, name: str) -> torch.Tensor:
        return self._tensors[name].to(torch.float32, copy=True).contiguous()

    def _matrix(self, weight: torch.Tensor, paired: torch.Tensor | None = None) -> PackedMatrix:
        num_bytes = panel_bytes(weight.shape[0], weight.shape[1], self._dtype, paired is not None)
        panels = self._arena[self._used : self._used + num_bytes]
        self._used += num_bytes
        return PackedMatrix(self._pool, weight, paired, panels=panels)

    def _arena_bytes(self) -> int:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        shapes = [
            (config.q_size + 2 * config.kv_size, hidden, False),
            (hidden, config.q_size, False),
            (inner, hidden, True),
            (hidden, inner, False),
        ] * config.num_layers
        num_tables = 1 if config.is_embedding_tied else 2
        shapes += [(config.vocab_size, hidden, False)] * num_tables
        return sum(
            panel_bytes(outputs, depth, self._dtype, paired) for outputs, depth, paired in shapes
        )
