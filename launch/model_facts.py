"""What is known about a model before it is loaded, for people and for programs: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from hybridgen.config import MAX_MODEL_LEN, Config
from hybridgen.errors import OutOfDeviceMemory
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.tensor_list import ListedTensor
from hybridgen.models.cuda.engine_shape import engine_shape
from hybridgen.models.cuda.memory_plan import MemoryPlan, plan_memory

_LAYER = re.compile(r"^(.*?\b(?:blk|layers)\.)(\d+)\.(.+)$")
#: Bits of a weight that a CUDA device serves.
WEIGHT_BITS = (16, 8)


class TensorGroup(msgspec.Struct, frozen=True):
    """Tensors that stand alone, or one layer's, which further layers repeat exactly."""

    title: str
    tensors: list[ListedTensor]
    num_layers: int = 0
    """Layers that are so; 0: no layer."""

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return max(1, self.num_layers) * sum(tensor.num_bytes for tensor in self.tensors)


class DeviceFit(msgspec.Struct, frozen=True):
    """What a device of some size has room for."""

    weight_bits: int
    fits: bool
    plan: str
    """For people."""
    weight_bytes: int = 0
    workspace_bytes: int = 0
    reserve_bytes: int = 0
    kv_bytes: int = 0
    num_kv_blocks: int = 0
    num_kv_tokens: int = 0
    """Tokens of all sequences together."""
    num_contexts: float = 0.0
    """Sequences of the whole context length."""


def model_facts(info: ModelInfo) -> dict[str, Any]:
    """Metadata: what the model is, the numbers of its shape, its tokenizer, its hints."""
    spec = info.tokenizer
    return {
        "name": info.name,
        "path": info.path,
        "kind": info.kind,
        "parameters": 0 if info.kind == "mock" else info.config.num_parameters,
        "weight_bytes": info.weight_bytes,
        "weight_types": info.weight_types,
        **msgspec.to_builtins(info.config),
        "longest_context": min(info.config.max_position, MAX_MODEL_LEN),
        "tokenizer": spec.kind,
        "pre_tokenizer": spec.pre_tokenizer,
        "adds_bos": spec.add_bos,
        "has_chat_template": spec.chat_template is not None,
        "hints": info.hints.given,
    }


def group_tensors(tensors: Iterable[ListedTensor]) -> list[TensorGroup]:
    """The tensors in order, with layers of equal tensors told once."""
    alone: list[ListedTensor] = []
    layers: dict[tuple[str, int], list[ListedTensor]] = {}
    for tensor in tensors:
        found = _LAYER.match(tensor.name)
        if found is None:
            alone.append(tensor)
            continue
        key = found[1], int(found[2])
        layers.setdefault(key, []).append(msgspec.structs.replace(tensor, name=found[3]))
    alike: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
    for key, members in layers.items():
        members.sort(key=lambda tensor: tensor.name)
        # A layer that is not like the one before it may be like an earlier one.
        shape = (key[0], *((tensor.name, tensor.dtype, tensor.shape) for tensor in members))
        alike.setdefault(shape, []).append(key)
    groups = [TensorGroup("top", alone)] if alone else []
    for keys in alike.values():
        numbers = sorted(number for _, number in keys)
        title = f"{keys[0][0]}{format_numbers(numbers)}"
        groups.append(TensorGroup(title, layers[keys[0]], len(keys)))
    return groups


def format_numbers(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` → ``0-2,5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def device_fits(info: ModelInfo, config: Config, total_bytes: int) -> list[DeviceFit]:
    """The memory plan of a CUDA device of ``total_bytes``, for each number of bits of a weight.

    Raises:
        ConfigError: ``config.device.gpu_memory`` is no amount of memory.
    """
    return [_device_fit(info, config, total_bytes, bits) for bits in WEIGHT_BITS]


def _device_fit(info: ModelInfo, config: Config, total_bytes: int, bits: int) -> DeviceFit:
    device = msgspec.structs.replace(config.device, quantize_weights=bits)
    shape = engine_shape(info, msgspec.structs.replace(config, device=device))
    try:
        plan: MemoryPlan = plan_memory(
            info.config,
            shape,
            total_bytes=total_bytes,
            free_bytes=total_bytes,
            gpu_memory=config.device.gpu_memory,
            num_blocks=config.device.num_kv_blocks,
            kv_bytes=config.device.kv_cache_memory,
        )
    except OutOfDeviceMemory as error:
        return DeviceFit(bits, fits=False, plan=str(error))
    num_tokens = plan.num_blocks * shape.block_size
    return DeviceFit(
        bits,
        fits=True,
        plan=str(plan),
        weight_bytes=plan.weight_bytes,
        workspace_bytes=plan.workspace_bytes,
        reserve_bytes=plan.reserve_bytes,
        kv_bytes=plan.kv_bytes,
        num_kv_blocks=plan.num_blocks,
        num_kv_tokens=num_tokens,
        num_contexts=round(num_tokens / shape.max_model_len, 2),
    )
