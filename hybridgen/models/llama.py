"""The Llama block interface: embedding, blocks and logits of one batch, in one native call."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from hybridgen.errors import InternalError
from hybridgen.models import _native
from hybridgen.models.attention import scratch_floats
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.config import ModelConfig
from hybridgen.models.engine import FloatArray, IntArray
from hybridgen.models.kv_cache import KvCache
from hybridgen.models.layers import DTYPE_CODES
from hybridgen.models.records import BatchRecord, LayerRecord, ModelRecord, encode_record
from hybridgen.models.rope import RopeTable, build_rope_table
from hybridgen.models.weights import LayerWeights, LlamaWeights


class TokenBatch(NamedTuple):
    """Tokens of one forward pass; arrays are contiguous and in bounds.

    Attributes:
        ids: int32[n].
        positions: int32[n], absolute; rising by one within a sequence.
        tables: int32[n / tokens_per_sequence, w], KV blocks of each sequence.
        tokens_per_sequence: consecutive tokens of each sequence.
        logits_out: float32[m, vocab_size], rows of the last m tokens; None for no logits.
    """

    ids: IntArray
    positions: IntArray
    tables: IntArray
    tokens_per_sequence: int
    logits_out: FloatArray | None


class _WorkSpace:
    """Activations of up to ``max_rows`` tokens, float32, kept for the model's life."""

    def __init__(
        self, config: ModelConfig, max_rows: int, max_positions: int, threads: int
    ) -> None:
        qkv_size = config.q_size + 2 * config.kv_size
        self.hidden = _rows(max_rows, config.hidden_size)
        self.normed = _rows(max_rows, config.hidden_size)
        self.qkv = _rows(max_rows, qkv_size)
        self.attended = _rows(max_rows, config.q_size)
        self.inner = _rows(max_rows, config.intermediate_size)
        self.scratch = _rows(threads, scratch_floats(config.head_dim, max_positions))


def _rows(num_rows: int, size: int) -> torch.Tensor:
    """[num_rows, size and some], uninitialised."""
    # Rows start on cache lines but not whole pages apart, where the rows of one tile would
    # compete for the same cache sets.
    return torch.empty(num_rows, -(-size // 16) * 16 + 16)


class LlamaModel:
    """Weights, KV cache, rope table and work space; owns all the memory that the kernels touch.

    Args:
        config: shape of the model.
        weights: packed.
        cache: KV blocks, of the weights' dtype.
        pool: computes; closed with the model.
        max_rows: most tokens of one ``forward``.
        max_positions: context length; positions are below it.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: LlamaWeights,
        cache: KvCache,
        pool: ComputePool,
        *,
        max_rows: int,
        max_positions: int,
    ) -> None:
        self.config = config
        self.cache = cache
        self.max_rows = max_rows
        self.max_positions = max_positions
        self._weights = weights
        self._pool = pool
        self._rope = build_rope_table(config, max_positions)
        self._space = _WorkSpace(config, max_rows, max_positions, pool.num_threads)
        self._model_record = encode_record(
            _model_record(config, weights, self._rope, self._space, max_rows)
        )
        self._layer_records = b"".join(
            encode_record(_layer_record(layer, cache.keys[i], cache.values[i]))
            for i, layer in enumerate(weights.layers)
        )

    def forward(self, batch: TokenBatch) -> None:
        """Compute the batch: K and V go to the cache, logits to ``batch.logits_out``.

        Bounds of ids, positions and blocks are the caller's (``step_check``).

        Raises:
            InternalError: the batch is larger than the work space, or does not divide.
        """
        num_tokens = len(batch.ids)
        if num_tokens > self.max_rows or num_tokens % batch.tokens_per_sequence:
            raise InternalError(
                "a batch does not fit the work space", value=num_tokens, limit=self.max_rows
            )
        logits = batch.logits_out
        record = BatchRecord(
            ids=batch.ids.ctypes.data,
            positions=batch.positions.ctypes.data,
            tables=batch.tables.ctypes.data,
            table_stride=batch.tables.strides[0] // 4,
            num_tokens=num_tokens,
            tokens_per_sequence=batch.tokens_per_sequence,
            num_logits=0 if logits is None else len(logits),
            logits=0 if logits is None else logits.ctypes.data,
            logits_stride=0 if logits is None else logits.strides[0] // 4,
        )
        _native.forward(
            self._pool.handle, self._model_record, self._layer_records, encode_record(record)
        )

    def close(self) -> None:
        """End the compute threads."""
        self._pool.close()


def _model_record(
    config: ModelConfig,
    weights: LlamaWeights,
    rope: RopeTable,
    space: _WorkSpace,
    max_rows: int,
) -> ModelRecord:
    return ModelRecord(
        num_layers=config.num_layers,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=DTYPE_CODES[weights.embedding.dtype],
        max_rows=max_rows,
        epsilon=config.rms_norm_eps,
        scale=1 / math.sqrt(config.head_dim),
        embedding=weights.embedding.panels.data_ptr(),
        lm_head=weights.lm_head.panels.data_ptr(),
        final_norm=weights.final_norm.data_ptr(),
        cosines=rope.cosines.ctypes.data,
        sines=rope.sines.ctypes.data,
        hidden=space.hidden.data_ptr(),
        normed=space.normed.data_ptr(),
        qkv=space.qkv.data_ptr(),
        attended=space.attended.data_ptr(),
        inner=space.inner.data_ptr(),
        scratch=space.scratch.data_ptr(),
        hidden_stride=space.hidden.stride(0),
        qkv_stride=space.qkv.stride(0),
        attended_stride=space.attended.stride(0),
        inner_stride=space.inner.stride(0),
        scratch_stride=space.scratch.stride(0),
    )


def _layer_record(layer: LayerWeights, keys: torch.Tensor, values: torch.Tensor) -> LayerRecord:
    def address(tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else tensor.data_ptr()

    return LayerRecord(
        qkv=address(layer.qkv.panels),
        output=address(layer.output.panels),
        gate_up=address(layer.gate_up.panels),
        down=address(layer.down.panels),
        qkv_bias=address(layer.qkv_bias),
        output_bias=address(layer.output_bias),
        gate_up_bias=address(layer.gate_up_bias),
        down_bias=address(layer.down_bias),
        attention_norm=address(layer.attention_norm),
        mlp_norm=address(layer.mlp_norm),
        keys=address(keys),
        values=address(values),
    )
