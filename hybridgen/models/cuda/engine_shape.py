"""Sizes of a CUDA engine that a configuration asks for: pure."""

from __future__ import annotations

from hybridgen.config import Config
from hybridgen.formats.model_info import ModelInfo
from hybridgen.kvcache.kv_window import DEVICE_PIECE_TOKENS
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.registry import max_model_len

#: Prompts of 32 tokens fill a piece with as many.
NUM_LOGITS_SLOTS = 64


def engine_shape(info: ModelInfo, config: Config) -> EngineShape:
    """Sizes that the configuration asks for."""
    context = max_model_len(info, config)
    return EngineShape(
        max_rows=config.scheduler.max_num_seqs,
        max_model_len=context,
        max_chunk=max(64, min(DEVICE_PIECE_TOKENS, -(-context // 64) * 64)),
        num_logits_slots=NUM_LOGITS_SLOTS,
        block_size=config.device.block_size,
        element_bytes=4 if config.model.dtype == "float32" else 2,
        is_int8=config.device.quantize_weights == 8,
    )
