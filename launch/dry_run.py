"""`--dry-run`: everything that can be known before a process starts, and nothing else."""

from __future__ import annotations

from typing import TextIO

from hybridgen.config import Config
from hybridgen.errors import ConfigError
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.weights_cache import check_cache
from hybridgen.launch.banner import plan_lines
from hybridgen.launch.device_choice import probed_bytes, run_probe
from hybridgen.launch.host import prepare, with_gateways
from hybridgen.launch.http_plan import http_url
from hybridgen.launch.listener import listening
from hybridgen.launch.model_check import check_model
from hybridgen.launch.plan import TreePlan
from hybridgen.launch.preflight import available_memory, format_bytes, format_parts, memory_parts
from hybridgen.models.cuda.engine_shape import engine_shape
from hybridgen.models.cuda.memory_plan import plan_memory


def dry_run(config: Config, stream: TextIO, *, is_public: bool) -> None:
    """Check model, plan, memory, shared memory and address; print what was found.

    Args:
        config: as the user gave it.
        stream: for people.
        is_public: of a tree that serves others.

    Raises:
        HybridGenError: why it cannot be served here, as a start would say it.
    """
    config = with_gateways(config, is_public=is_public)
    plan, placement = prepare(config)
    info = inspect_model(config.model.model, config)
    for line in plan_lines(plan, placement):
        print(line, file=stream)
    for label, text in check_model(info, plan.config):
        _print(label, text, stream)
    model = plan.config.model
    prepared = check_cache(info, model.dtype, model.cache_dir)
    if prepared is not None:
        is_there = "is there" if prepared.exists() else "is made at the first start"
        _print("cache", f"{prepared} {is_there}", stream)
    _print("memory", memory_text(info, plan), stream)
    for name, value in info.hints.given.items():
        _print("hint", f"{name} {value}", stream)
    with listening(plan.config.http):
        if plan.config.http.num_gateways:
            _print("http", f"{http_url(plan.config.http)} is free", stream)
    print("all of it fits; nothing was started", file=stream)


def memory_text(info: ModelInfo, plan: TreePlan) -> str:
    """What is needed and what there is.

    Raises:
        ConfigError: there is no CUDA device, or ``gpu_memory`` is no amount of memory.
        OutOfDeviceMemory: it does not fit.
    """
    parts = memory_parts(plan)
    if plan.config.device.device != "cuda":
        need = format_bytes(sum(parts.values()))
        return f"{format_parts(parts)}: {need} of {format_bytes(available_memory())}"
    said, is_good = run_probe()
    if not is_good:
        raise ConfigError(
            f"no CUDA device was found: {said}",
            value="device cuda",
            remedy="Use --device cpu, or see that driver and device are visible here",
        )
    total_bytes = probed_bytes(said)
    device = plan.config.device
    fit = plan_memory(
        info.config,
        engine_shape(info, plan.config),
        total_bytes=total_bytes,
        free_bytes=total_bytes,
        gpu_memory=device.gpu_memory,
        num_blocks=device.num_kv_blocks,
        kv_bytes=device.kv_cache_memory,
    )
    return f"if nothing else is on the device: {fit}"


def _print(label: str, text: str, stream: TextIO) -> None:
    print(f"  {label:<10} {text}", file=stream)
