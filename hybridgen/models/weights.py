"""Weights in the form that the kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from hybridgen.errors import InternalError, UnsupportedModel, WeightsMismatch
from hybridgen.models import _native
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.config import ModelConfig
from hybridgen.models.experts import PackedExperts, expert_bytes
from hybridgen.models.layers import (
    DTYPE_CODES,
    HALF,
    PackedMatrix,
    panel_bias,
    panel_bytes,
)
from hybridgen.models.stored_weights import StoredWeights
from hybridgen.models.weight_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix

Tensors = Mapping[str, torch.Tensor]


class FeedForwardWeights(NamedTuple):
    """The two products around the gate. Biases are float32."""

    gate_up: PackedMatrix
    """Paired: gate and up."""
    down: PackedMatrix
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None


class LayerWeights(NamedTuple):
    """One block. Norms and biases are float32; ``norm_offset`` is in the norms."""

    qkv: PackedMatrix
    """[q heads, k heads, v heads] × hidden."""
    output: PackedMatrix
    qkv_bias: torch.Tensor | None
    output_bias: torch.Tensor | None
    feed_forward: FeedForwardWeights | PackedExperts
    attention_norm: torch.Tensor
    attention_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp_post_norm: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


class ModelWeights(NamedTuple):
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
    if isinstance(tensors, StoredWeights):
        found = tensors.shapes
    else:
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, shape in config.weight_shapes().items():
        if found.get(name) != shape:
            raise WeightsMismatch(
                f"tensor {name} does not fit the model's configuration",
                tensor=name,
                value=str(list(found[name])) if name in found else "missing",
                limit=str(list(shape)),
                remedy="Fetch or convert the model again",
            )
    if config.head_dim % HALF:
        raise UnsupportedModel(
            "the size of an attention head is not a multiple of 16", value=config.head_dim
        )


def pack_weights(
    pool: ComputePool, config: ModelConfig, tensors: Tensors, dtype: torch.dtype
) -> ModelWeights:
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
        self._shapes = config.weight_shapes()
        self._tensors = tensors
        self._dtype = dtype
        self._arena = torch.empty(self._arena_bytes(), dtype=torch.uint8)
        self._used = 0
        # Advice: without huge pages the same works, a little slower.
        _native.advise_huge(self._arena.data_ptr(), len(self._arena))

    def pack(self) -> ModelWeights:
        config = self._config
        embedding = self._matrix(self._weight(EMBEDDING))
        layers = [self._layer(layer_prefix(i)) for i in range(config.num_layers)]
        is_tied = config.is_embedding_tied
        lm_head = embedding if is_tied else self._matrix(self._weight(LM_HEAD))
        return ModelWeights(embedding, lm_head, self._norm(FINAL_NORM), layers)

    def _layer(self, prefix: str) -> LayerWeights:
        attention = prefix + "self_attn."
        behind_attention = prefix + "post_attention_layernorm.weight"
        has_post_norms = self._config.has_post_norms
        before_mlp = prefix + "pre_feedforward_layernorm.weight"
        return LayerWeights(
            qkv=self._matrix(self._weight(attention + "qkv_proj.weight")),
            output=self._matrix(self._weight(attention + "o_proj.weight")),
            qkv_bias=self._bias(attention + "qkv_proj.bias"),
            output_bias=self._bias(attention + "o_proj.bias"),
            feed_forward=self._feed_forward(prefix + "mlp."),
            attention_norm=self._norm(prefix + "input_layernorm.weight"),
            attention_post_norm=self._norm(behind_attention) if has_post_norms else None,
            mlp_norm=self._norm(before_mlp if has_post_norms else behind_attention),
            mlp_post_norm=self._optional_norm(prefix + "post_feedforward_layernorm.weight"),
            q_norm=self._optional_norm(attention + "q_norm.weight"),
            k_norm=self._optional_norm(attention + "k_norm.weight"),
        )

    def _feed_forward(self, prefix: str) -> FeedForwardWeights | PackedExperts:
        if self._config.experts is not None and prefix + "gate.weight" in self._shapes:
            return PackedExperts(
                self._pool,
                self._config.experts,
                lambda name: self._tensors[prefix + name],
                self._dtype,
                self._allocate,
            )
        return FeedForwardWeights(
            gate_up=self._matrix(*self._weight(prefix + "gate_up_proj.weight").chunk(2)),
            down=self._matrix(self._weight(prefix + "down_proj.weight")),
            gate_up_bias=self._bias(prefix + "gate_up_proj.bias", num_parts=2),
            down_bias=self._bias(prefix + "down_proj.bias"),
        )

    def _weight(self, name: str) -> torch.Tensor:
        return self._tensors[name].to(self._dtype).contiguous()

    def _vector(self, name: str) -> torch.Tensor:
        return self._tensors[name].to(torch.float32, copy=True).contiguous()

    def _norm(self, name: str) -> torch.Tensor:
        return self._vector(name) + self._config.norm_offset

    def _optional_norm(self, name: str) -> torch.Tensor | None:
        return self._norm(name) if name in self._shapes else None

    def _bias(self, name: str, num_parts: int = 1) -> torch.Tensor | None:
        return panel_bias(*self._vector(name).chunk(num_parts)) if name in self._shapes else None

    def _matrix(self, weight: torch.Tensor, paired: torch.Tensor | None = None) -> PackedMatrix:
        num_bytes = panel_bytes(weight.shape[0], weight.shape[1], self._dtype, paired is not None)
        return PackedMatrix(self._pool, weight, paired, panels=self._allocate(num_bytes))

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        panels = self._arena[self._used : self._used + num_bytes]
        self._used += num_bytes
        return panels

    def _arena_bytes(self) -> int:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        shapes = [
            (config.qkv_size, hidden, False),
            (hidden, config.q_size, False),
        ] * config.num_layers
        num_mixed = sum(config.has_experts(layer) for layer in range(config.num_layers))
        shapes += [(inner, hidden, True), (hidden, inner, False)] * (config.num_layers - num_mixed)
        num_tables = 1 if config.is_embedding_tied else 2
        shapes += [(config.vocab_size, hidden, False)] * num_tables
        num_bytes = sum(
            panel_bytes(outputs, depth, self._dtype, paired) for outputs, depth, paired in shapes
        )
        if config.experts is not None:
            num_bytes += num_mixed * expert_bytes(config.experts, hidden, self._dtype)
        return num_bytes
