"""The CPU engine: chunked prefill and batched decode over a model."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from hybridgen.models.cpu_model import CpuModel, TokenBatch
from hybridgen.models.engine import FloatArray, IntArray
from hybridgen.models.kv_cache import BLOCK_SIZE
from hybridgen.models.step_check import check_decode, check_prefill


class _Bounds(TypedDict):
    num_blocks: int
    block_size: int
    vocab_size: int
    max_positions: int


class Runner:
    """Implements ``Engine``: checks a step's numbers and hands it to the model.

    Chunks and batches larger than the model's work space are computed in pieces; the result is
    the same, since no row's arithmetic depends on the others.
    """

    def __init__(self, model: CpuModel) -> None:
        self.num_blocks = model.cache.num_blocks
        self.block_size = BLOCK_SIZE
        self.vocab_size = model.config.vocab_size
        self._model = model
        self._bounds = _Bounds(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            vocab_size=self.vocab_size,
            max_positions=model.max_positions,
        )

    def prefill(
        self, ids: IntArray, start: int, blocks: IntArray, logits_out: FloatArray | None
    ) -> None:
        """See ``Engine.prefill``."""
        check_prefill(ids, start, blocks, logits_out, **self._bounds)
        positions = np.arange(start, start + len(ids), dtype=np.int32)
        step = self._model.max_rows
        for first in range(0, len(ids), step):
            piece = slice(first, first + step)
            is_last = first + step >= len(ids)
            rows = logits_out[None, :] if is_last and logits_out is not None else None
            num_tokens = len(ids[piece])
            self._model.forward(
                TokenBatch(ids[piece], positions[piece], blocks[None, :], num_tokens, rows)
            )

    def decode(
        self,
        ids: IntArray,
        positions: IntArray,
        block_tables: IntArray,
        logits_out: FloatArray,
    ) -> None:
        """See ``Engine.decode``."""
        check_decode(ids, positions, block_tables, logits_out, **self._bounds)
        step = self._model.max_rows
        for first in range(0, len(ids), step):
            piece = slice(first, first + step)
            self._model.forward(
                TokenBatch(ids[piece], positions[piece], block_tables[piece], 1, logits_out[piece])
            )

    def close(self) -> None:
        """See ``Engine.close``."""
        self._model.close()
