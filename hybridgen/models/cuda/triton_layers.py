"""The operations of a Llama block by the kernels of ``models/kernels``, and cuBLAS beside them."""

from __future__ import annotations

import torch

from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.layers import Projection, Rope
from hybridgen.models.kernels.attention import attention_needs, choose_attention, decode_attention
from hybridgen.models.kernels.embedding import gather_embedding
from hybridgen.models.kernels.linear import LinearWeights, linear, linear_needs, scratch_needs
from hybridgen.models.kernels.linear_choice import choose_linear
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.rotary import rotate_and_store
from hybridgen.models.kernels.workspace import Workspace


class TritonLayers:
    """Implements ``Layers`` for one stream.

    Args:
        config: the model.
        rope: cosines and sines, float32[num_positions, head_dim / 2] each.
        row_counts: of the steps to come; they size the workspace.
        dtype: of the activations.
        is_int8: weights are INT8, all but the embedding.
        is_chained: kernels start while the one before still ends (see ``kernels.producer``), all
            but the first of a step, the embedding.
    """

    def __init__(
        self,
        config: ModelConfig,
        rope: Rope,
        row_counts: list[int],
        dtype: torch.dtype,
        *,
        is_int8: bool = False,
        is_chained: bool = False,
    ) -> None:
        self._config = config
        self._rope = rope
        self._is_chained = is_chained
        weight_dtype = torch.int8 if is_int8 else dtype
        floats, counters, elements = _needs(config, row_counts, weight_dtype)
        self._workspace = Workspace(
            rope[0].device,
            num_floats=floats,
            num_counters=counters,
            dtype=dtype,
            num_elements=elements,
        )

    def embed(self, ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Layers``."""
        gather_embedding(ids, table, out)

    def project(
        self,
        x: torch.Tensor,
        projection: Projection,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> None:
        """See ``Layers``."""
        linear(
            x,
            _linear_weights(projection),
            out,
            workspace=self._workspace,
            residual=residual,
            is_chained=self._is_chained,
        )

    def attend(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor,
        positions: torch.Tensor,
        tables: torch.Tensor,
    ) -> None:
        """See ``Layers``."""
        decode_attention(
            qkv,
            cache,
            out,
            self._rope,
            positions,
            tables,
            num_heads=self._config.num_heads,
            workspace=self._workspace,
            is_chained=self._is_chained,
        )

    def store(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        positions: torch.Tensor,
        places: torch.Tensor,
    ) -> None:
        """See ``Layers``."""
        rotate_and_store(
            qkv,
            cache,
            self._rope,
            positions,
            places,
            num_heads=self._config.num_heads,
            is_chained=self._is_chained,
        )


def _linear_weights(projection: Projection) -> LinearWeights:
    return LinearWeights(
        projection.weight,
        scales=projection.scales,
        bias=projection.bias,
        is_gated=projection.is_gated,
        norm=projection.norm,
        epsilon=projection.epsilon,
    )


def _needs(
    config: ModelConfig, row_counts: list[int], weight_dtype: torch.dtype
) -> tuple[int, int, int]:
    """(floats, counters, elements of scratch) that are enough for every step."""
    hidden, inner = config.hidden_size, config.intermediate_size
    matrices = [
        (config.q_size + 2 * config.kv_size, hidden, False),
        (hidden, config.q_size, False),
        (inner, hidden, True),
        (hidden, inner, False),
        (config.vocab_size, hidden, False),
    ]
    floats = counters = elements = 1
    for rows, size, is_gated in matrices:
        whole = (rows * (2 if is_gated else 1), size)
        weight = torch.empty(whole, dtype=weight_dtype, device="meta")
        shape = LinearWeights(weight, is_gated=is_gated).shape
        for num_rows in row_counts:
            choice = choose_linear(num_rows, shape)
            need = linear_needs(num_rows, shape, choice)
            floats, counters = max(floats, need[0]), max(counters, need[1])
            elements = max(elements, scratch_needs(num_rows, shape, choice))
    group = config.num_kv_groups
    for num_rows in row_counts:
        split = choose_attention(num_rows, config.num_kv_heads)
        need = attention_needs(num_rows, config.num_kv_heads, group, config.head_dim, split)
        floats, counters = max(floats, need[0]), max(counters, need[1])
    return floats, counters, elements
