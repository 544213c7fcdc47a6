"""The operations of a block by the kernels of ``models/kernels``, and cuBLAS beside them."""

from __future__ import annotations

import torch

from hybridgen.errors import InternalError
from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.layers import FeedForward, Projection
from hybridgen.models.cuda.rope_tables import RopeTables
from hybridgen.models.cuda.triton_experts import TritonExperts
from hybridgen.models.kernels.attention import attention_needs, choose_attention, decode_attention
from hybridgen.models.kernels.embedding import gather_embedding
from hybridgen.models.kernels.head_options import PLAIN_HEADS, HeadOptions
from hybridgen.models.kernels.linear import LinearWeights, linear, linear_needs, scratch_needs
from hybridgen.models.kernels.linear_choice import LinearShape, choose_linear
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.rotary import rotate_and_store
from hybridgen.models.kernels.workspace import Workspace


class TritonLayers:
    """Implements ``Layers`` for one stream.

    Args:
        config: the model.
        ropes: cosines and sines.
        row_counts: of the steps to come; they size the workspace.
        dtype: of the activations.
        is_int8: weights are INT8, all but the embedding.
        is_chained: kernels start while the one before still ends (see ``kernels.producer``), all
            but the first of a step, the embedding.
    """

    def __init__(
        self,
        config: ModelConfig,
        ropes: RopeTables,
        row_counts: list[int],
        dtype: torch.dtype,
        *,
        is_int8: bool = False,
        is_chained: bool = False,
    ) -> None:
        self._config = config
        self._ropes = ropes
        self._is_chained = is_chained
        weight_dtype = torch.int8 if is_int8 else dtype
        floats, counters, elements = _needs(config, row_counts, dtype, weight_dtype)
        self._workspace = Workspace(
            ropes.whole[0].device,
            num_floats=floats,
            num_counters=counters,
            dtype=dtype,
            num_elements=elements,
            num_products=max(row_counts) * config.hidden_size if config.has_post_norms else 0,
        )

        self._experts: TritonExperts | None = None
        if config.experts is not None:
            self._experts = TritonExperts(
                config.experts,
                config.hidden_size,
                max(row_counts),
                dtype,
                ropes.whole[0].device,
                project=self.project,
                is_chained=is_chained,
            )

    def embed(self, ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Layers``."""
        gather_embedding(ids, table, out, scale=self._config.embedding_scale)

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

    def mix(
        self,
        x: torch.Tensor,
        block: FeedForward,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> None:
        """See ``Layers``."""
        if self._experts is None:
            raise InternalError("the model has no experts")
        self._experts.mix(x, block, out, residual, positions)

    def attend(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        out: torch.Tensor,
        positions: torch.Tensor,
        tables: torch.Tensor,
        *,
        heads: HeadOptions = PLAIN_HEADS,
    ) -> None:
        """See ``Layers``."""
        decode_attention(
            qkv,
            cache,
            out,
            self._ropes.of(is_local=heads.is_local),
            positions,
            tables,
            num_heads=self._config.num_heads,
            workspace=self._workspace,
            heads=heads,
            is_chained=self._is_chained,
        )

    def store(
        self,
        qkv: torch.Tensor,
        cache: PagedCache,
        positions: torch.Tensor,
        places: torch.Tensor,
        *,
        heads: HeadOptions = PLAIN_HEADS,
    ) -> None:
        """See ``Layers``."""
        rotate_and_store(
            qkv,
            cache,
            self._ropes.of(is_local=heads.is_local),
            positions,
            places,
            num_heads=self._config.num_heads,
            heads=heads,
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
        is_gelu=projection.is_gelu,
        post_norm=projection.post_norm,
        softcap=projection.softcap,
    )


def _needs(
    config: ModelConfig, row_counts: list[int], dtype: torch.dtype, weight_dtype: torch.dtype
) -> tuple[int, int, int]:
    """(floats, counters, elements of scratch) that are enough for every step."""
    hidden, inner = config.hidden_size, config.intermediate_size
    bits, experts = 8 * weight_dtype.itemsize, config.experts
    shapes = [
        LinearShape(config.qkv_size, hidden, False, bits),
        LinearShape(hidden, config.q_size, False, bits),
        LinearShape(inner, hidden, True, bits),
        LinearShape(hidden, inner, False, bits),
        LinearShape(config.vocab_size, hidden, False, bits),
    ]
    if experts is not None:
        shapes.append(LinearShape(experts.num_router_rows, hidden, False, 8 * dtype.itemsize))
    if experts is not None and experts.shared_size:
        shapes.append(LinearShape(experts.shared_size, hidden, True, bits))
        shapes.append(LinearShape(hidden, experts.shared_size, False, bits))
    floats = counters = elements = 1
    for shape in shapes:
        for num_rows in row_counts:
            choice = choose_linear(num_rows, shape)
            need = linear_needs(num_rows, shape, choice)
            floats, counters = max(floats, need[0]), max(counters, need[1])
            elements = max(elements, scratch_needs(num_rows, shape, choice))
    group = config.num_kv_groups
    for num_rows in row_counts:
        split = choose_attention(num_rows, config.num_kv_heads, config.head_dim)
        need = attention_needs(num_rows, config.num_kv_heads, group, config.head_dim, split)
        floats, counters = max(floats, need[0]), max(counters, need[1])
    return floats, counters, elements
