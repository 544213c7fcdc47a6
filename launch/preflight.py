"""What is checked before the first process or segment is made: space, descriptors, memory.

Everything here would otherwise fail later, under load, and without a message: tmpfs is lazy and
kills by SIGBUS, descriptors run out in the middle of an accept, memory in the middle of a step.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

import psutil

from hybridgen.config import HttpSection
from hybridgen.errors import ConfigError, SharedMemoryFull
from hybridgen.ipc.segment import SHM_DIR, free_shared_memory
from hybridgen.launch.plan import ELEMENT_BYTES, TreePlan
from hybridgen.launch.segment_plan import RING_NAMES, SegmentPlan
from hybridgen.scheduler.request_spans import check_spans
from hybridgen.server.key_file import read_keys

#: Sockets, segments, doorbells and files of one process, with room for clients.
FILES_PER_TREE = 256
FILES_PER_PROCESS = 16
WANTED_FILES = 65_536
#: Interpreter and libraries of one CPU role; measured 25–90 MiB.
PROCESS_BYTES = 64 << 20


def check(plan: TreePlan) -> None:
    """Run all checks for ``plan`` and raise the limit on open files.

    Raises:
        SharedMemoryFull: /dev/shm cannot hold the segments; ``need_bytes`` and ``have_bytes``.
        ConfigError: too few descriptors or too little memory, no keys where some are asked for, or
            spans that cannot be exported.
    """
    check_keys(plan.config.http)
    check_spans(plan.config.server.enable_tracing, os.environ)
    check_shared_memory(plan.segments, free_shared_memory())
    check_files(len(plan.worker_names))
    check_memory(plan, available_memory())


def check_keys(config: HttpSection) -> None:
    """Read the key file as the gateway will.

    Raises:
        ConfigError: it cannot be read, or holds no key.
    """
    if config.num_gateways:
        read_keys(config.api_key_file)


def available_memory() -> int:
    """Bytes that can be taken without swapping, the cgroup's limit counted."""
    have_bytes = psutil.virtual_memory().available
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        limit, used = _number(limit_file), _number(used_file)
        if limit is not None and used is not None:
            have_bytes = min(have_bytes, max(0, limit - used))
    return int(have_bytes)


def check_shared_memory(segments: list[SegmentPlan], have_bytes: int) -> None:
    """Compare all planned segments, and a second ring, with the free space.

    A new gpu process gets a ring of its own while the old one is still mapped.

    Raises:
        SharedMemoryFull: naming the largest segment and the options that make it smaller.
    """
    need_bytes = sum(
        segment.size_bytes * (2 if segment.name in RING_NAMES else 1) for segment in segments
    )
    if need_bytes <= have_bytes:
        return
    largest = max(segments, key=lambda segment: segment.size_bytes)
    raise SharedMemoryFull(
        f"{SHM_DIR} cannot hold the segments of this tree; the largest is {largest.name} "
        f"({format_bytes(largest.size_bytes)})",
        value=f"need {format_bytes(need_bytes)}",
        limit=f"have {format_bytes(have_bytes)}",
        remedy=f"Enlarge {SHM_DIR} (docker: --shm-size), or lower {largest.flags}",
        need_bytes=need_bytes,
        have_bytes=have_bytes,
    )


def check_files(num_processes: int) -> None:
    """Raise the soft limit on open files; children inherit it.

    Raises:
        ConfigError: even the hard limit is too low for a tree of this size.
    """
    need = FILES_PER_TREE + FILES_PER_PROCESS * num_processes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if ceiling < need:
        raise ConfigError(
            "too few open files are allowed",
            value=f"limit is {ceiling}",
            limit=f"at least {need} for {num_processes} processes",
            remedy="Raise it (ulimit -Hn, LimitNOFILE=), or make the pools smaller",
        )
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))


def check_memory(plan: TreePlan, have_bytes: int) -> None:
    """Compare weights, KV cache, segments and processes with the memory there is.

    Raises:
        ConfigError: with the sum and its largest part.
    """
    parts = memory_parts(plan)
    need_bytes = sum(parts.values())
    if need_bytes <= have_bytes:
        return
    raise ConfigError(
        f"the plan does not fit into memory: {format_parts(parts)}",
        value=f"need {format_bytes(need_bytes)}",
        limit=f"have {format_bytes(have_bytes)}",
        remedy="Lower --kv-cache-memory, --max-num-seqs or --max-model-len, or free memory",
    )


def memory_parts(plan: TreePlan) -> dict[str, int]:
    """What the host's memory is needed for, in bytes."""
    element_bytes = ELEMENT_BYTES[plan.config.model.dtype]
    is_mock = plan.model.kind == "mock"
    return {
        "weights": 0 if is_mock else plan.model.config.num_parameters * element_bytes,
        "KV cache": 0 if is_mock else plan.kv_cache_bytes,
        "shared memory": plan.shm_bytes,
        "processes": PROCESS_BYTES * len(plan.worker_names),
    }


def format_parts(parts: Mapping[str, int]) -> str:
    """``weights 1.5 GiB, KV cache 2.0 GiB``."""
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def format_bytes(num_bytes: int) -> str:
    """``1536`` → ``1.5 KiB``."""
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:  # this cgroup version is not mounted
        return None
    return int(text) if text.isdigit() else None
