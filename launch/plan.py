"""The plan of a tree, worked out before anything is started: pure.

``TreePlan`` fixes what was left open in the configuration — pool sizes from the CPU budget,
context length, KV blocks, spinning — and lists every process and segment. Its ``config`` is the
resolved one: no field in it means "work it out" any more, so workers never guess.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from hybridgen.config import MAX_MODEL_LEN, Config
from hybridgen.errors import ConfigError
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.ipc.board import Role
from hybridgen.kvcache.kv_window import kv_window
from hybridgen.kvcache.planned_blocks import planned_blocks
from hybridgen.launch.http_plan import check_http
from hybridgen.launch.placement import CpuSupply
from hybridgen.launch.segment_plan import (
    DEVICE_CUT_CAPACITY,
    DEVICE_RING_DEPTH,
    RING_DEPTH,
    SegmentPlan,
    TreeGeometry,
    plan_segments,
)
from hybridgen.memory_amount import bytes_of

#: Share of the usable CPUs that the CPU roles take by default; the rest is the system's.
BUDGET_SHARE = 0.8
#: Slots beyond running and queued requests: finished ones whose text is not yet confirmed.
SPARE_SLOTS = 16
#: From this many CPUs on a waiter may spin without taking the CPU from whom it waits for.
MIN_CPUS_TO_SPIN = 8
DEFAULT_SPIN_US = 50
MAX_AUTO_SAMPLERS = 16
MAX_AUTO_TEXT_POOL = 8
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DtypeName = Literal["float32", "bfloat16", "float16"]
#: ``quantize_weights`` that leaves weights as they are.
UNQUANTIZED_BITS = 16
#: All streams stand while a process of these is missing, and its replacement needs no more than an
#: interpreter and a vocabulary: one is kept waiting.
STANDBY_ROLES = frozenset({Role.SAMPLER, Role.DETOKENIZER})


class PoolCounts(NamedTuple):
    """Processes per pool."""

    num_tokenizers: int
    num_samplers: int
    num_detokenizers: int


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One child process."""

    role: Role
    index: int
    board_index: int
    entry: str
    """``module:function`` that the child runs."""
    standby_entry: str = ""
    """The same, by which a process prepares to replace it; empty: none waits for this role."""

    @property
    def name(self) -> str:
        """``role-index``: process title, socket identity, log name."""
        return f"{self.role.label}-{self.index}"


class TreePlan(NamedTuple):
    """Everything that a supervisor needs to know."""

    config: Config
    model: ModelInfo
    model_path: str
    supply: CpuSupply
    num_cpu_threads: int
    num_kv_blocks: int
    kv_cache_bytes: int
    geometry: TreeGeometry
    workers: list[WorkerPlan]
    segments: list[SegmentPlan]
    device_reason: str = ""
    """What ``--device auto`` was decided by, for people; empty where a device was asked for."""

    @property
    def worker_names(self) -> list[str]:
        """Every process of the tree in board order; the supervisor holds line 0."""
        return [f"{Role.SUPERVISOR.label}-0", *(worker.name for worker in self.workers)]

    @property
    def shm_bytes(self) -> int:
        """Shared memory of all segments."""
        return sum(segment.size_bytes for segment in self.segments)


def make_plan(config: Config, model: ModelInfo, supply: CpuSupply, num_cores: int) -> TreePlan:
    """Work out the tree for ``model`` on the CPUs of ``supply``.

    Args:
        config: as the user gave it; zeros and ``auto`` are replaced here.
        model: what is served.
        supply: CPUs that may be used.
        num_cores: physical cores of the machine, the limit of ``num_cpu_threads``.

    Raises:
        ConfigError: a value is more than the model or the machine has.
    """
    _check_device(config, model)
    # Only whether it is an amount: how much the device has is not known here.
    bytes_of(config.device.gpu_memory, sys.maxsize, name="gpu_memory")
    budget = cpu_budget(config.pools.num_cpu_threads, supply, num_cores)
    check_http(config.http)
    counts = pool_counts(config, budget)
    max_model_len = context_length(config, model)
    num_kv_blocks, kv_cache_bytes = kv_blocks(config, model, max_model_len)
    geometry = TreeGeometry(
        num_slots=config.scheduler.max_num_seqs + config.scheduler.backlog_limit + SPARE_SLOTS,
        max_model_len=max_model_len,
        max_rows=config.scheduler.max_num_seqs,
        vocab_size=model.config.vocab_size,
        num_lanes=counts.num_samplers,
        num_processes=3 + sum(counts) + gateway_count(config),
        ring_depth=DEVICE_RING_DEPTH if _is_on_device(config) else RING_DEPTH,
        cut_capacity=DEVICE_CUT_CAPACITY if _is_on_device(config) else 0,
    )
    return TreePlan(
        config=_resolve(
            config,
            supply,
            pools={**counts._asdict(), "num_cpu_threads": budget},
            served_model_name=config.model.served_model_name or model.name,
            max_model_len=max_model_len,
            num_kv_blocks=num_kv_blocks,
        ),
        # Its vocabulary is tens of megabytes that no supervisor needs.
        model=msgspec.structs.replace(model, tokenizer=TokenizerSpec(kind=model.tokenizer.kind)),
        model_path=model.path,
        supply=supply,
        num_cpu_threads=budget,
        num_kv_blocks=num_kv_blocks,
        kv_cache_bytes=kv_cache_bytes,
        geometry=geometry,
        workers=_list_workers(counts, gateway_count(config)),
        segments=plan_segments(geometry),
    )


def cpu_budget(asked: int, supply: CpuSupply, num_cores: int) -> int:
    """CPUs that all CPU roles share; at least 1."""
    if asked > num_cores:
        raise ConfigError(
            "num_cpu_threads is more than the machine has physical cores",
            value=asked,
            limit=num_cores,
            remedy="Give --num-cpu-threads at most the limit, or leave it out",
        )
    return asked or max(1, math.floor(supply.effective * BUDGET_SHARE))


def pool_counts(config: Config, budget: int) -> PoolCounts:
    """Sizes of the pools: what the user fixed, else a share of ``budget``, at least 1 each.

    One CPU of the budget is the coscheduler's. Sampling is the work that grows with every token
    of every row, so samplers get what tokenizers and detokenizers (a sixth each) leave.
    """
    pools = config.pools
    rest = max(0, budget - 1)
    text_share = min(MAX_AUTO_TEXT_POOL, max(1, rest // 6))
    num_tokenizers = pools.num_tokenizers or text_share
    num_detokenizers = pools.num_detokenizers or text_share
    left = rest - num_tokenizers - num_detokenizers
    most = min(MAX_AUTO_SAMPLERS, config.scheduler.max_num_seqs)
    num_samplers = pools.num_samplers or min(most, max(1, left))
    return PoolCounts(num_tokenizers, num_samplers, num_detokenizers)


def gateway_count(config: Config) -> int:
    """Gateways on top of the budget: none where nobody has asked for one."""
    return max(0, config.http.num_gateways)


def context_length(config: Config, model: ModelInfo) -> int:
    """Tokens of context that are served."""
    own = config.mock.mock_max_model_len if model.kind == "mock" else model.config.max_position
    asked = config.model.max_model_len
    if asked > own:
        raise ConfigError(
            f"max_model_len is more than the context of model {model.name}",
            value=asked,
            limit=own,
            remedy="Give --max-model-len at most the limit, or leave it out",
        )
    return asked or min(own, MAX_MODEL_LEN)


def kv_blocks(config: Config, model: ModelInfo, max_model_len: int) -> tuple[int, int]:
    """(KV blocks, bytes of the cache). One sequence of full length always fits, as far as kept.

    On a CUDA device 0 blocks: as many as fit, which the gpu process finds out.

    Raises:
        ConfigError: the cache that was asked for does not hold one full sequence.
    """
    is_left_to_device = not config.device.num_kv_blocks and not config.device.kv_cache_memory
    if _is_on_device(config) and is_left_to_device:
        return 0, 0
    block_size = config.device.block_size
    bytes_per_token = model.config.kv_bytes_per_token(ELEMENT_BYTES[_dtype(config)])
    kept_window = model.config.kept_window
    num_blocks = planned_blocks(
        config,
        max_model_len=max_model_len,
        bytes_per_token=bytes_per_token,
        kept_window=kept_window,
    )
    block_bytes = block_size * bytes_per_token
    least = kv_window(config, kept_window).row_blocks(max_model_len)
    if num_blocks < least:
        flag = "--num-kv-blocks" if config.device.num_kv_blocks else "--kv-cache-memory"
        raise ConfigError(
            f"the KV cache holds less than one sequence of {max_model_len} tokens",
            value=f"{num_blocks} blocks",
            limit=f"at least {least} blocks ({least * block_bytes} bytes)",
            remedy=f"Raise {flag} or lower --max-model-len",
        )
    return num_blocks, num_blocks * block_bytes


def _is_on_device(config: Config) -> bool:
    return config.device.device == "cuda"


def _check_device(config: Config, model: ModelInfo) -> None:
    """Refuse what the chosen device cannot do."""
    if _is_on_device(config):
        if model.kind == "mock":
            raise ConfigError(
                "the mock model has no arithmetic for a device",
                value="device cuda",
                limit="auto, cpu",
                remedy="Use --device cpu, or a model",
            )
        return
    for name, value in (("dtype", config.model.dtype), ("load_format", config.model.load_format)):
        if value in {"float16", "dummy"}:
            raise ConfigError(
                f"{name} {value} needs a CUDA device",
                value=value,
                remedy=f"Add --device cuda, or leave out --{name.replace('_', '-')}",
            )
    if config.device.quantize_weights != UNQUANTIZED_BITS:
        raise ConfigError(
            "quantized weights need a CUDA device",
            value=config.device.quantize_weights,
            limit=f"{UNQUANTIZED_BITS} on the CPU",
            remedy="Add --device cuda, or leave out --quantize-weights",
        )


def _resolve(
    config: Config,
    supply: CpuSupply,
    *,
    pools: dict[str, int],
    served_model_name: str,
    max_model_len: int,
    num_kv_blocks: int,
) -> Config:
    replace = msgspec.structs.replace
    spin_us = config.pools.spin_us
    if spin_us < 0:
        spin_us = DEFAULT_SPIN_US if supply.effective >= MIN_CPUS_TO_SPIN else 0
    num_threads = config.device.num_compute_threads or supply.effective
    return replace(
        config,
        model=replace(
            config.model,
            served_model_name=served_model_name,
            max_model_len=max_model_len,
            dtype=_dtype(config),
        ),
        device=replace(
            config.device,
            device="cuda" if _is_on_device(config) else "cpu",
            num_kv_blocks=num_kv_blocks,
            num_compute_threads=num_threads,
        ),
        pools=replace(config.pools, **pools, spin_us=spin_us),
        http=replace(config.http, num_gateways=gateway_count(config)),
    )


def _dtype(config: Config) -> DtypeName:
    return "bfloat16" if config.model.dtype == "auto" else config.model.dtype


def _list_workers(counts: PoolCounts, num_gateways: int) -> list[WorkerPlan]:
    sizes = [
        (Role.COSCHEDULER, 1),
        (Role.GPU, 1),
        (Role.SAMPLER, counts.num_samplers),
        (Role.TOKENIZER, counts.num_tokenizers),
        (Role.DETOKENIZER, counts.num_detokenizers),
        (Role.GATEWAY, num_gateways),
    ]
    flat = [(role, index) for role, size in sizes for index in range(size)]
    return [_plan_worker(role, index, line) for line, (role, index) in enumerate(flat, start=1)]


def _plan_worker(role: Role, index: int, line: int) -> WorkerPlan:
    module = f"hybridgen.workers.{role.label}"
    standby_entry = f"{module}:prepare" if role in STANDBY_ROLES else ""
    return WorkerPlan(role, index, line, f"{module}:run", standby_entry)
