"""What the device's memory is needed for, worked out before anything is loaded: pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from hybridgen.errors import OutOfDeviceMemory
from hybridgen.kvcache.kv_window import DEVICE_PIECE_TOKENS, KvWindow
from hybridgen.memory_amount import bytes_of
from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.expert_buffers import expert_buffer_bytes
from hybridgen.models.kernels.linear_choice import MAX_DEQUANTIZED, MAX_INT8_DOT_TOKENS
from hybridgen.models.weight_names import is_quantized

#: Graphs, libraries, compiled kernels, and what the allocator cannot use.
RESERVE_BYTES = 1 << 30
#: What kernels hand to each other: partial sums of products and attention, cuts of logits.
PARTIALS_BYTES = 64 << 20
_GIB = 1 << 30


class EngineShape(NamedTuple):
    """The numbers that buffers follow from.

    Attributes:
        max_rows: rows of a decode step.
        max_model_len: context length.
        max_chunk: tokens of one piece of prefill.
        num_logits_slots: buffers for first logits.
        block_size: tokens of a KV block.
        element_bytes: of weights, activations and KV.
        is_int8: matrices are INT8, all but the embedding.
    """

    max_rows: int
    max_model_len: int
    max_chunk: int
    num_logits_slots: int
    block_size: int
    element_bytes: int
    is_int8: bool = False

    @property
    def table_width(self) -> int:
        """Blocks of one sequence."""
        return -(-self.max_model_len // self.block_size)


class MemoryPlan(NamedTuple):
    """Bytes by purpose, and the limit that they keep, for people."""

    weight_bytes: int
    workspace_bytes: int
    reserve_bytes: int
    block_bytes: int
    num_blocks: int
    limit: str

    @property
    def kv_bytes(self) -> int:
        """The KV cache, with the scratch block."""
        return self.block_bytes * (self.num_blocks + 1)

    @property
    def total_bytes(self) -> int:
        """Everything."""
        return self.weight_bytes + self.workspace_bytes + self.reserve_bytes + self.kv_bytes

    def __str__(self) -> str:
        """``weights 24.24 GiB, …, in all 125.96 GiB of 126.00 GiB (…)``."""
        return (
            f"weights {_gib(self.weight_bytes)}, workspace {_gib(self.workspace_bytes)}, "
            f"reserve {_gib(self.reserve_bytes)}, "
            f"{self.num_blocks} KV blocks {_gib(self.kv_bytes)}: "
            f"in all {_gib(self.total_bytes)} of {self.limit}"
        )


def plan_memory(
    config: ModelConfig,
    shape: EngineShape,
    *,
    total_bytes: int,
    free_bytes: int,
    gpu_memory: float | str,
    num_blocks: int = 0,
    kv_bytes: int = 0,
) -> MemoryPlan:
    """Fit weights, buffers and KV blocks into the device.

    Args:
        config: the model.
        shape: the engine.
        total_bytes: of the device.
        free_bytes: of them, now.
        gpu_memory: how much of ``total_bytes`` may be used, see ``bytes_of``.
        num_blocks: KV blocks asked for; counts before ``kv_bytes``.
        kv_bytes: bytes of KV asked for; with neither, the cache gets all that is left.

    Raises:
        ConfigError: ``gpu_memory`` is no amount of memory.
        OutOfDeviceMemory: with what is needed, what there is, and for what.
    """
    weight_bytes = bytes_of_weights(config, shape.element_bytes, is_int8=shape.is_int8)
    workspace_bytes = _workspace_bytes(config, shape)
    block_bytes = shape.block_size * config.kv_bytes_per_token(shape.element_bytes)
    have = min(_allowed_bytes(gpu_memory, total_bytes), free_bytes)
    whole = f"{_gib(total_bytes)}, {_gib(free_bytes)} free"
    limit = f"{_gib(have)} (gpu_memory {gpu_memory} of {whole})"
    fixed = weight_bytes + workspace_bytes + RESERVE_BYTES
    window = KvWindow(config.kept_window, shape.block_size, DEVICE_PIECE_TOKENS)
    least = window.row_blocks(shape.max_model_len)
    wanted = num_blocks or kv_bytes // block_bytes
    if not wanted:
        wanted = max((have - fixed) // block_bytes - 1, least)
    plan = MemoryPlan(weight_bytes, workspace_bytes, RESERVE_BYTES, block_bytes, wanted, limit)
    if plan.total_bytes <= have and wanted >= least:
        return plan
    raise _refusal(plan, have, least)


def _refusal(plan: MemoryPlan, have: int, least: int) -> OutOfDeviceMemory:
    smallest = plan._replace(num_blocks=least)
    need = max(plan.total_bytes, smallest.total_bytes)
    is_model = smallest.total_bytes - plan.block_bytes > have
    return OutOfDeviceMemory(
        f"the model does not fit into the device's memory: {plan}; "
        f"one whole context takes {least} blocks",
        value=_gib(need),
        limit=plan.limit,
        remedy=(
            "Raise --gpu-memory, lower --max-model-len or --max-num-seqs, or take a smaller model"
            if is_model
            else "Change --num-kv-blocks or --kv-cache-memory"
        ),
        need_bytes=need,
        have_bytes=have,
    )


def _allowed_bytes(gpu_memory: float | str, total_bytes: int) -> int:
    allowed_bytes = bytes_of(gpu_memory, total_bytes, name="gpu_memory")
    if allowed_bytes <= total_bytes:
        return allowed_bytes
    raise OutOfDeviceMemory(
        "gpu_memory is more than the device has",
        value=f"{gpu_memory}, {_gib(allowed_bytes)}",
        limit=_gib(total_bytes),
        remedy="Give --gpu-memory at most the limit, or a share such as 90%",
        need_bytes=allowed_bytes,
        have_bytes=total_bytes,
    )


def bytes_of_weights(config: ModelConfig, element_bytes: int, *, is_int8: bool = False) -> int:
    """All weights on the device.

    INT8: a matrix takes a byte per weight and four per row, for the scale; the embedding, routers
    and biases stay as they are. A tied output matrix is an INT8 copy of the embedding then. Norms
    are float32.
    """
    total = 0
    for name, shape in config.weight_shapes().items():
        if "norm" in name:
            total += 4 * math.prod(shape)
        elif is_int8 and is_quantized(name, shape):
            total += math.prod(shape[:-1]) * (shape[-1] + 4)
        else:
            total += math.prod(shape) * element_bytes
    if is_int8 and config.is_embedding_tied:
        total += config.vocab_size * (config.hidden_size + 4)
    return total


def _workspace_bytes(config: ModelConfig, shape: EngineShape) -> int:
    """Buffers of the decode step and of prefill; what kernels need for partial results."""
    # Products that have yet to pass a norm are rows of the hidden size, too.
    num_hidden = 3 if config.has_post_norms else 2
    per_token = num_hidden * config.hidden_size + config.qkv_size + config.q_size
    per_token += config.intermediate_size + 2 * _most_gates(config)
    activations = (shape.max_rows + shape.max_chunk) * per_token * shape.element_bytes
    logits = 2 * (shape.max_rows + shape.num_logits_slots) * 4 * config.vocab_size
    context = shape.table_width * shape.block_size
    gathered = 2 * context * config.kv_size * shape.element_bytes
    attended = 2 * shape.max_chunk * config.q_size * shape.element_bytes
    num_ropes = len({config.has_local_rope(layer) for layer in range(config.num_layers)} | {False})
    rope = num_ropes * 2 * 4 * shape.max_model_len * config.rotary_size // 2
    state = 4 * shape.max_rows * (2 + shape.table_width)
    dequantized = _num_dequantized(config, shape) * shape.element_bytes
    buffers = activations + logits + gathered + attended + rope + state + dequantized
    if config.experts is not None:
        buffers += sum(
            expert_buffer_bytes(config.experts, config.hidden_size, rows, shape.element_bytes)
            for rows in (shape.max_rows, shape.max_chunk)
        )
    return buffers + PARTIALS_BYTES


def _most_gates(config: ModelConfig) -> int:
    """Of one plain product, to be multiplied by as many ups; experts have buffers of their own."""
    shared_size = config.experts.shared_size if config.experts is not None else 0
    return max(config.intermediate_size, shared_size)


def _num_dequantized(config: ModelConfig, shape: EngineShape) -> int:
    """Weights that INT8 matrices are written out to, for cuBLAS, on each stream that does it."""
    if not shape.is_int8:
        return 0
    num_rows = max(2 * _most_gates(config), config.vocab_size, config.qkv_size)
    num_streams = sum(n > MAX_INT8_DOT_TOKENS for n in (shape.max_rows, shape.max_chunk))
    return num_streams * min(MAX_DEQUANTIZED, num_rows * config.hidden_size)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
