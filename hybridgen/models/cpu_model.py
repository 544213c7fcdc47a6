"""The model on the CPU: embedding, blocks and logits of one batch, in one native call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridgen.errors import InternalError
from hybridgen.models import _native
from hybridgen.models.attention import scratch_floats
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.config import ModelConfig
from hybridgen.models.engine import FloatArray, IntArray
from hybridgen.models.experts import ExpertSpace, PackedExperts
from hybridgen.models.kv_cache import KvCache
from hybridgen.models.layers import DTYPE_CODES, Epilogue, activation_rows, address
from hybridgen.models.records import BatchRecord, LayerRecord, ModelRecord, encode_record
from hybridgen.models.rope import RopeTable, build_rope_table
from hybridgen.models.weights import LayerWeights, ModelWeights

Bytes = npt.NDArray[np.uint8]


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
        self.hidden = activation_rows(max_rows, config.hidden_size)
        self.normed = activation_rows(max_rows, config.hidden_size)
        self.qkv = activation_rows(max_rows, config.qkv_size)
        self.attended = activation_rows(max_rows, config.q_size)
        self.inner = activation_rows(max_rows, config.intermediate_size)
        self.scratch = activation_rows(threads, scratch_floats(config.head_dim, max_positions))
        experts = config.experts
        self.experts = (
            None if experts is None else ExpertSpace(experts, config.hidden_size, max_rows)
        )


class CpuModel:
    """Weights, KV cache, rope tables and work space; owns all the memory that the kernels touch.

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
        weights: ModelWeights,
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
        local_layers = [config.has_local_rope(layer) for layer in range(config.num_layers)]
        self._ropes = {
            is_local: build_rope_table(config, max_positions, is_local=is_local)
            for is_local in set(local_layers)
        }
        self._space = _WorkSpace(config, max_rows, max_positions, pool.num_threads)
        self._model_record = encode_record(_model_record(config, weights, self._space, max_rows))
        self._expert_records = _expert_records(config, weights, self._space)
        self._layer_records = b"".join(
            encode_record(
                _layer_record(
                    config,
                    i,
                    weights.layers[i],
                    self._ropes[is_local],
                    cache,
                    experts=self._expert_records.get(i),
                )
            )
            for i, is_local in enumerate(local_layers)
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
    weights: ModelWeights,
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
        rotary_size=config.rotary_size,
        gate=_gate(config),
        dtype=DTYPE_CODES[weights.embedding.dtype],
        max_rows=max_rows,
        epsilon=config.rms_norm_eps,
        scale=config.score_scale,
        embedding_scale=config.embedding_scale,
        attention_softcap=config.attention_softcap,
        logit_softcap=config.logit_softcap,
        embedding=weights.embedding.panels.data_ptr(),
        lm_head=weights.lm_head.panels.data_ptr(),
        final_norm=weights.final_norm.data_ptr(),
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


def _gate(config: ModelConfig) -> Epilogue:
    return Epilogue.GEGLU if config.activation == "gelu_tanh" else Epilogue.SWIGLU


def _expert_records(
    config: ModelConfig, weights: ModelWeights, space: _WorkSpace
) -> dict[int, Bytes]:
    """Layer → the record of its experts, in memory that stays where it is."""
    return {
        index: np.frombuffer(
            encode_record(layer.feed_forward.record(space.experts, _gate(config))), np.uint8
        )
        for index, layer in enumerate(weights.layers)
        if isinstance(layer.feed_forward, PackedExperts) and space.experts is not None
    }


def _layer_record(
    config: ModelConfig,
    layer: int,
    weights: LayerWeights,
    rope: RopeTable,
    cache: KvCache,
    *,
    experts: Bytes | None,
) -> LayerRecord:
    block = weights.feed_forward
    plain = None if isinstance(block, PackedExperts) else block
    return LayerRecord(
        qkv=address(weights.qkv.panels),
        output=address(weights.output.panels),
        gate_up=0 if plain is None else address(plain.gate_up.panels),
        down=0 if plain is None else address(plain.down.panels),
        qkv_bias=address(weights.qkv_bias),
        output_bias=address(weights.output_bias),
        gate_up_bias=0 if plain is None else address(plain.gate_up_bias),
        down_bias=0 if plain is None else address(plain.down_bias),
        attention_norm=address(weights.attention_norm),
        mlp_norm=address(weights.mlp_norm),
        attention_post_norm=address(weights.attention_post_norm),
        mlp_post_norm=address(weights.mlp_post_norm),
        q_norm=address(weights.q_norm),
        k_norm=address(weights.k_norm),
        cosines=rope.cosines.ctypes.data,
        sines=rope.sines.ctypes.data,
        window=config.window(layer),
        keys=address(cache.keys[layer]),
        values=address(cache.values[layer]),
        experts=0 if experts is None else experts.ctypes.data,
    )
