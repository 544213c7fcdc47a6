"""Which KV blocks of a row are still needed, where tokens attend to a window of the past only.

A row's block table counts positions from 0 on. With a window its leading entries go back to the
pool one by one, and what stays in the table there is never read again::

    position   0 ┬───────┬───────┬───────┬───────┬───────┐
    table        │ freed │ freed │ kept  │ kept  │ next  │
                 └───────┴───────┴───────┴───────┴───────┘
                           window of the oldest ▲ position that may still be computed

A device runs ahead of what is known of it: steps in flight are at positions before the one that
is reported as the next. They are fewer than ``block_size``, so one block more is kept.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from hybridgen.config import Config

#: Prompt tokens that a CUDA device computes at once for one row of a windowed model.
DEVICE_PIECE_TOKENS = 2048


class KvWindow(NamedTuple):
    """How much of a row is kept.

    Attributes:
        num_tokens: positions that a token attends to, itself included; 0: all.
        block_size: tokens per KV block.
        piece_tokens: prompt tokens of one row that are computed at once, at most.
    """

    num_tokens: int
    block_size: int
    piece_tokens: int

    def first_kept(self, num_computed: int) -> int:
        """Index of the first block that is still read.

        Args:
            num_computed: leading tokens of the row whose KV is in its blocks, or ordered to be.
        """
        if not self.num_tokens:
            return 0
        oldest = num_computed - self.block_size  # that a step in flight may compute
        return max(0, oldest - self.num_tokens + 1) // self.block_size

    @property
    def most_blocks(self) -> int:
        """Blocks that a row of any length holds at once: its window, a piece, and two cut ones."""
        if not self.num_tokens:
            return sys.maxsize
        return self._blocks_for(self.num_tokens - 1) + self._blocks_for(self.piece_tokens) + 2

    def row_blocks(self, num_tokens: int) -> int:
        """Blocks that a row of so many tokens needs at once."""
        return min(self._blocks_for(num_tokens), self.most_blocks)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def piece_tokens(config: Config) -> int:
    """Prompt tokens of one row that are computed at once, at most."""
    is_on_device = config.device.device == "cuda"
    return DEVICE_PIECE_TOKENS if is_on_device else config.scheduler.prefill_chunk


def kv_window(config: Config, kept_window: int) -> KvWindow:
    """The window of a model (``ModelConfig.kept_window``) in a configured tree."""
    return KvWindow(kept_window, config.device.block_size, piece_tokens(config))
