"""What the gpu process needs from a model: KV blocks in, logits rows out.

An engine owns the weights and the KV cache and nothing else: it knows no request, no slot and no
sampling. Who may use which KV block is decided by the scheduler; the engine reads and writes the
blocks it is told.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

#: int32[...]: token ids, positions, block numbers.
IntArray = npt.NDArray[np.int32]
#: float32[...]: logits.
FloatArray = npt.NDArray[np.float32]


class Engine(Protocol):
    """A loaded model with its paged KV cache.

    Results depend on the tokens alone: the same context gives the same logits bit for bit,
    however its prompt was cut into chunks and whatever else is in the batch.
    """

    #: KV blocks that exist; valid block numbers are 0 … num_blocks - 1.
    num_blocks: int
    #: Tokens per KV block.
    block_size: int
    #: Length of a logits row.
    vocab_size: int

    def prefill(
        self, ids: IntArray, start: int, blocks: IntArray, logits_out: FloatArray | None
    ) -> None:
        """Run one chunk of one sequence.

        Args:
            ids: int32[n], the tokens at absolute positions start … start + n - 1; everything
                before ``start`` was computed by earlier calls with the same blocks.
            start: absolute position of the first token.
            blocks: int32[w], block of each ``block_size`` positions from 0 on; covers the chunk.
                Blocks before the windows of all layers (``ModelConfig.kept_window``) are not
                read: any block's number may stand there.
            logits_out: float32[vocab_size], receives the row of the last position; None to skip
                it (any chunk but a prompt's last).

        Raises:
            InternalError: a token, position or block is out of range.
        """
        ...

    def decode(
        self,
        ids: IntArray,
        positions: IntArray,
        block_tables: IntArray,
        logits_out: FloatArray,
    ) -> None:
        """Run one token of each of ``n`` sequences.

        Args:
            ids: int32[n], newest token of each sequence.
            positions: int32[n], absolute position of each id.
            block_tables: int32[n, w], blocks as in ``prefill``; entries past a row's position
                are not read.
            logits_out: float32[n, vocab_size]; rows may be further apart than they are long.

        Raises:
            InternalError: a token, position or block is out of range.
        """
        ...

    def close(self) -> None:
        """Give back memory and threads; the engine is not used again."""
        ...
