"""From a configuration to a CUDA engine: the memory plan first, then weights, then graphs."""

from __future__ import annotations

import logging
from collections.abc import Collection

import torch

from hybridgen.config import Config
from hybridgen.errors import ConfigError, UnsupportedModel
from hybridgen.formats.convert import load_weights, prepare_weights
from hybridgen.formats.hybridgen_file import DtypeName
from hybridgen.formats.model_info import ModelInfo
from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.decoder import batch_buckets
from hybridgen.models.cuda.engine import CudaEngine
from hybridgen.models.cuda.engine_shape import engine_shape
from hybridgen.models.cuda.layers import Layers
from hybridgen.models.cuda.memory_plan import EngineShape, MemoryPlan, plan_memory
from hybridgen.models.cuda.rope_tables import RopeTables
from hybridgen.models.cuda.triton_layers import TritonLayers
from hybridgen.models.cuda.weights import (
    DeviceWeights,
    load_device_weights,
    random_device_weights,
)
from hybridgen.models.registry import Progress

logger = logging.getLogger(__name__)

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "auto": torch.bfloat16,
}
#: What torch's attention kernels take.
MAX_HEAD_DIM = 256
#: Shares of a start after which the weights are prepared, and on the device.
_PREPARED, _LOADED = 0.5, 0.9


def load_cuda_engine(
    info: ModelInfo,
    config: Config,
    on_progress: Progress,
    loading_cpus: Collection[int] = (),
) -> CudaEngine:
    """Load the model, its KV cache and its graphs onto the first visible device.

    Args:
        info: the model.
        config: resolved.
        on_progress: called with the share done and what is being done.
        loading_cpus: for the threads that read the weights; empty means those of this process.

    Raises:
        ConfigError: there is no CUDA device.
        OutOfDeviceMemory: it does not fit; nothing was loaded.
        ModelError: the weights cannot be used, or the device's kernels do not take the model.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "no CUDA device was found",
            value="device cuda",
            remedy="Use --device cpu, or see that driver and device are visible here",
        )
    check_model(info.config)
    device = torch.device("cuda", torch.cuda.current_device())
    dtype = TORCH_DTYPES[config.model.dtype]
    shape = engine_shape(info, config)
    plan = plan_for_device(info, config, shape, device)
    weights = _load(info, config, dtype, device, on_progress, loading_cpus=loading_cpus)
    torch.cuda.empty_cache()  # what loading used beside the weights is the KV cache's now
    on_progress(_LOADED, "making graphs")

    def make_layers(ropes: RopeTables, is_prefill: bool) -> Layers:
        row_counts = batch_buckets(shape.max_chunk if is_prefill else shape.max_rows)
        return TritonLayers(
            info.config,
            ropes,
            row_counts,
            dtype,
            is_int8=shape.is_int8,
            is_chained=not is_prefill,
        )

    engine = CudaEngine(
        info.config,
        weights,
        shape,
        plan.num_blocks,
        make_layers,
        hand_off=config.device.hand_off,
    )
    on_progress(1.0, "ready")
    return engine


def check_model(config: ModelConfig) -> None:
    """Can the device's kernels compute it?

    Raises:
        UnsupportedModel: they cannot.
    """
    if config.head_dim > MAX_HEAD_DIM:
        raise UnsupportedModel(
            "attention heads are too large for a CUDA device",
            value=config.head_dim,
            limit=MAX_HEAD_DIM,
            remedy="Use --device cpu",
        )


def plan_for_device(
    info: ModelInfo, config: Config, shape: EngineShape, device: torch.device
) -> MemoryPlan:
    """The memory plan on what the device has now.

    Raises:
        ConfigError: see ``plan_memory``.
        OutOfDeviceMemory: see ``plan_memory``.
    """
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    plan = plan_memory(
        info.config,
        shape,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        gpu_memory=config.device.gpu_memory,
        num_blocks=config.device.num_kv_blocks,
        kv_bytes=config.device.kv_cache_memory,
    )
    logger.info("memory plan: %s", plan)
    return plan


def _load(
    info: ModelInfo,
    config: Config,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Progress,
    *,
    loading_cpus: Collection[int],
) -> DeviceWeights:
    if info.kind == "dummy":
        return random_device_weights(info.config, dtype, device, is_int8=_is_int8(config))
    # fp16 has not the range of bf16: it is made from the full precision, on the way.
    stored: DtypeName = "bfloat16" if dtype == torch.bfloat16 else "float32"
    path = prepare_weights(
        info,
        stored,
        config.model.cache_dir,
        lambda share: on_progress(share * _PREPARED, "preparing weights"),
        loading_cpus,
    )

    def on_loaded(share: float) -> None:
        on_progress(_PREPARED + share * (_LOADED - _PREPARED), "loading weights")

    return load_device_weights(
        info.config,
        load_weights(path),
        dtype,
        device,
        on_loaded,
        is_int8=_is_int8(config),
        loading_cpus=loading_cpus,
    )


def _is_int8(config: Config) -> bool:
    return config.device.quantize_weights == 8
