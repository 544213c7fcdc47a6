"""A CUDA engine driven by hand, without a ring: what went in, and the logits that came out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.decoder import batch_buckets
from hybridgen.models.cuda.engine import CudaEngine
from hybridgen.models.cuda.layers import Layers, TorchLayers
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.cuda.rope_tables import RopeTables
from hybridgen.models.cuda.triton_layers import TritonLayers
from hybridgen.models.cuda.weights import load_device_weights
from hybridgen.models.device_engine import PromptChunk

DEVICE = torch.device("cuda")


def make_engine(
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    kind: str = "triton",
    max_rows: int = 4,
    num_blocks: int = 40,
    hand_off: str = "auto",
    max_chunk: int = 64,
    is_int8: bool = False,
) -> CudaEngine:
    shape = EngineShape(
        max_rows, config.max_position, max_chunk, 4, 16, dtype.itemsize, is_int8=is_int8
    )
    weights = load_device_weights(config, tensors, dtype, DEVICE, lambda _: None, is_int8=is_int8)
    return CudaEngine(
        config, weights, shape, num_blocks, layers_of(config, dtype, kind, shape),
        hand_off=hand_off,
    )  # fmt: skip


def layers_of(
    config: ModelConfig, dtype: torch.dtype, kind: str, shape: EngineShape
) -> Callable[[RopeTables, bool], Layers]:
    def make(ropes: RopeTables, is_prefill: bool) -> Layers:
        if kind == "torch":
            return TorchLayers(config, ropes)
        return TritonLayers(
            config, ropes, batch_buckets(shape.max_chunk), dtype,
            is_int8=shape.is_int8, is_chained=not is_prefill,
        )  # fmt: skip

    return make


class DirectEngine:
    """Prefill and decode, one call each, waiting for the device."""

    def __init__(self, engine: CudaEngine) -> None:
        self.engine = engine
        self._layout = engine._state.layout

    def prefill(
        self, ids: np.ndarray, blocks: np.ndarray, cuts: tuple[int, ...] = ()
    ) -> np.ndarray:
        for start, stop in pairwise([0, *cuts, len(ids)]):
            slot = 0 if stop == len(ids) else -1
            self.prefill_piece([PromptChunk(ids[start:stop], start, blocks, slot)])
        return self.engine._prefiller.logits[0, : self.engine.vocab_size].cpu().numpy()

    def prefill_piece(self, chunks: list[PromptChunk]) -> np.ndarray:
        """[num_logits_slots, vocab_size] behind it."""
        piece = self.engine.prefill(chunks)
        while piece.advance(3):
            pass
        torch.cuda.synchronize()
        assert piece.is_done()
        assert piece.device_ms() > 0.0
        return self.engine._prefiller.logits[:, : self.engine.vocab_size].cpu().numpy()

    def decode(self, ids: np.ndarray, positions: np.ndarray, tables: np.ndarray) -> np.ndarray:
        """One step of these rows, everything written from the host."""
        layout, num_rows = self._layout, len(ids)
        indices = [np.arange(num_rows), layout.origins + np.arange(num_rows)]
        values = [positions, -1 - ids]
        for row in range(num_rows):
            indices.append(layout.tables + row * layout.width + np.arange(tables.shape[1]))
            values.append(tables[row])
        self.engine.apply(np.concatenate(indices), np.concatenate(values).astype(np.int32))
        return self.step(num_rows)

    def step(self, num_rows: int) -> np.ndarray:
        """One step from what is on the device."""
        with torch.cuda.stream(self.engine.stream):
            self.engine._decoder.replay(num_rows, 0)
        torch.cuda.synchronize()
        logits = self.engine._decoder.logits(0)[:num_rows, : self.engine.vocab_size]
        return logits.cpu().numpy()

    def idle(self, num_rows: int) -> None:
        self.engine.apply(np.arange(num_rows), np.full(num_rows, -1, np.int32))
