"""Keys and values of one layer on the device, block by block."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hybridgen.errors import InternalError
from hybridgen.models.kernels.head_options import HeadOptions


class PagedCache(NamedTuple):
    """One layer's keys and values, [num_blocks, num_kv_heads, block_size, head_dim] each.

    A view of that shape: the memory may lie otherwise, as long as the dimensions of a head are
    side by side and both tensors have the same strides. In memory as written here, the positions
    of one head in one block are one piece (4 KiB for 16 positions of 128 bf16 dimensions).
    """

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def num_kv_heads(self) -> int:
        """Heads that have own keys and values."""
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        """Positions of a block."""
        return self.keys.shape[2]

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""
        return self.keys.shape[3]

    @property
    def strides(self) -> tuple[int, int, int]:
        """Elements from one block, kv head, position to the next."""
        block, head, position, _ = self.keys.stride()
        return block, head, position

    def check_batch(
        self,
        qkv: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        positions: torch.Tensor,
        tables: torch.Tensor | None,
        num_heads: int,
        heads: HeadOptions,
    ) -> None:
        """Check everything that can be seen from the host without reading device memory.

        Raises:
            InternalError: a shape, dtype or stride does not fit.
        """
        num_tokens = len(qkv)
        width = (num_heads + 2 * self.num_kv_heads) * self.head_dim
        half = rope[0].shape[1]
        norms = (heads.q_norm, heads.k_norm)
        problems = {
            "cache": self.keys.shape != self.values.shape
            or self.keys.stride() != self.values.stride()
            or self.keys.dtype != self.values.dtype
            or self.keys.stride(3) != 1,
            "num_heads": num_heads % self.num_kv_heads != 0,
            "qkv": qkv.shape != (num_tokens, width) or qkv.stride(1) != 1,
            "rope": not 0 < 2 * half <= self.head_dim
            or any(
                table.shape[1:] != (half,)
                or table.dtype != torch.float32
                or not table.is_contiguous()
                for table in rope
            ),
            "norms of heads": norms != (None, None)
            and any(
                norm is None or norm.shape != (self.head_dim,) or not norm.is_contiguous()
                for norm in norms
            ),
            "positions": positions.shape != (num_tokens,) or positions.dtype != torch.int32,
            "tables": tables is not None
            and (
                tables.dim() != 2
                or len(tables) != num_tokens
                or tables.dtype != torch.int32
                or tables.stride(1) != 1
            ),
        }
        wrong = [name for name, is_wrong in problems.items() if is_wrong]
        if wrong:
            raise InternalError("operands of paged attention do not fit", value=", ".join(wrong))
