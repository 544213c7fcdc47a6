"""The paged KV cache of one model on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from hybridgen.errors import OutOfHostMemory
from hybridgen.models.config import ModelConfig

#: Positions of a block; fixed by the kernels (HG_BLOCK of ops.h).
BLOCK_SIZE = 16


class KvCache:
    """Keys and values of all layers, block by block.

    ``keys``: [layer, block, kv_head, head_dim, 16], positions innermost, so that one vector holds
    one dimension of 16 positions when scores are computed. ``values``: [layer, block, kv_head,
    16, head_dim]. Memory is taken from the system only when a block is first written.

    Raises:
        OutOfHostMemory: the cache is larger than the memory that is free now.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, dtype: torch.dtype) -> None:
        need = kv_block_bytes(config, dtype) * num_blocks
        have = available_bytes()
        if need > have:
            raise OutOfHostMemory(
                f"the KV cache of {num_blocks} blocks does not fit into host memory",
                value=f"{need} bytes",
                limit=f"{have} bytes",
                remedy="Lower --num-kv-blocks, --kv-cache-memory or --max-num-seqs",
                need_bytes=need,
                have_bytes=have,
            )
        lead = (config.num_layers, num_blocks, config.num_kv_heads)
        self.num_blocks = num_blocks
        self.keys = torch.empty(*lead, config.head_dim, BLOCK_SIZE, dtype=dtype)
        self.values = torch.empty(*lead, BLOCK_SIZE, config.head_dim, dtype=dtype)


def kv_block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return BLOCK_SIZE * config.kv_bytes_per_token(dtype.itemsize)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that can be taken without swapping (MemAvailable)."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OutOfHostMemory(
        f"{meminfo} does not say how much memory is free", remedy="Linux 3.14 or newer is needed"
    )
