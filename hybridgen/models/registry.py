"""Which engine serves a model on the CPU; ``cuda.load`` has that of a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hybridgen.config import MAX_MODEL_LEN, Config
from hybridgen.formats.model_info import ModelInfo
from hybridgen.kvcache.planned_blocks import planned_blocks
from hybridgen.models.engine import Engine
from hybridgen.models.mock import MockEngine

if TYPE_CHECKING:
    from hybridgen.models.runner import Runner

#: Called with the share done, 0 … 1, and what is being done.
Progress = Callable[[float, str], None]

#: Most tokens of one forward pass; larger chunks are computed in pieces.
MAX_ROWS = 512
#: Share of a start that preparing the weights file takes when it is not cached.
_PREPARED = 0.8


def load_engine(info: ModelInfo, config: Config, on_progress: Progress) -> Engine:
    """Load the model and its KV cache.

    Raises:
        OutOfHostMemory: the KV cache does not fit.
        ModelError: the weights cannot be used.
    """
    if info.kind == "mock":
        return _load_mock(info, config)
    return _load_cpu(info, config, on_progress)


def max_model_len(info: ModelInfo, config: Config) -> int:
    """Context length that is served."""
    return config.model.max_model_len or min(info.config.max_position, MAX_MODEL_LEN)


def _num_blocks(info: ModelInfo, config: Config) -> int:
    element_bytes = 4 if config.model.dtype == "float32" else 2
    return planned_blocks(
        config,
        max_model_len=max_model_len(info, config),
        bytes_per_token=info.config.kv_bytes_per_token(element_bytes),
        kept_window=info.config.kept_window,
    )


def _load_mock(info: ModelInfo, config: Config) -> MockEngine:
    return MockEngine(
        info.config.vocab_size,
        _num_blocks(info, config),
        step_us=config.mock.mock_step_us,
        eos_id=info.config.eos_ids[0],
        eos_bias=config.mock.mock_eos_bias,
        block_size=config.device.block_size,
    )


def _load_cpu(info: ModelInfo, config: Config, on_progress: Progress) -> Runner:
    # torch takes over a second to import; the mock must not pay for it.
    import torch  # noqa: PLC0415

    from hybridgen.formats.convert import load_weights, prepare_weights  # noqa: PLC0415
    from hybridgen.models.compute_pool import ComputePool  # noqa: PLC0415
    from hybridgen.models.cpu_model import CpuModel  # noqa: PLC0415
    from hybridgen.models.kv_cache import KvCache  # noqa: PLC0415
    from hybridgen.models.runner import Runner  # noqa: PLC0415
    from hybridgen.models.weights import pack_weights  # noqa: PLC0415

    name: Literal["float32", "bfloat16"] = (
        "float32" if config.model.dtype == "float32" else "bfloat16"
    )
    dtype = torch.float32 if name == "float32" else torch.bfloat16
    on_progress(0.0, "preparing weights")
    path: Path = prepare_weights(
        info,
        name,
        config.model.cache_dir,
        lambda share: on_progress(share * _PREPARED, "preparing weights"),
    )
    on_progress(_PREPARED, "packing weights")
    pool = ComputePool(config.device.num_compute_threads)
    weights = pack_weights(pool, info.config, load_weights(path), dtype)
    cache = KvCache(info.config, _num_blocks(info, config), dtype)
    rows = max(config.scheduler.max_num_seqs, min(config.scheduler.prefill_chunk, MAX_ROWS))
    model = CpuModel(
        info.config,
        weights,
        cache,
        pool,
        max_rows=rows,
        max_positions=max_model_len(info, config),
    )
    on_progress(1.0, "ready")
    return Runner(model)
