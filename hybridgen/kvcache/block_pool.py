"""Which KV blocks are free.

Blocks are numbered 0 … num_blocks-1 and mean what the gpu process makes of them; this file only
counts. A block is free or taken, never both; taking and giving back cost O(1) a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridgen.errors import InternalError, OutOfBlocks


class BlockPool:
    """A stack of free blocks: the one freed last is given out first, while it is warm."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_taken = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that allocate() could give out."""
        return len(self._free)

    @property
    def num_taken(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold the KV of this many tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks; all of them or none.

        Raises:
            OutOfBlocks: fewer are free.
        """
        if num_blocks > len(self._free):
            raise OutOfBlocks(
                "not enough free KV blocks",
                value=num_blocks,
                limit=len(self._free),
                remedy="Wait for a request to finish, or preempt one",
            )
        if num_blocks <= 0:
            return []
        blocks = self._free[-num_blocks:][::-1]
        del self._free[-num_blocks:]
        for block in blocks:
            self._is_taken[block] = 1
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back; all of them or none.

        Raises:
            InternalError: a block is not taken, is named twice, or does not exist.
        """
        self._check(blocks, is_taken=True)
        for block in blocks:
            self._is_taken[block] = 0
        self._free.extend(reversed(blocks))

    def claim(self, blocks: Sequence[int]) -> None:
        """Mark blocks that a running row already holds as taken (after a restart of the owner).

        Raises:
            InternalError: a block is taken already, is named twice, or does not exist.
        """
        self._check(blocks, is_taken=False)
        for block in blocks:
            self._is_taken[block] = 1
        self._free = [block for block in self._free if not self._is_taken[block]]

    def _check(self, blocks: Sequence[int], *, is_taken: bool) -> None:
        if len(set(blocks)) != len(blocks):
            raise InternalError("a KV block is named twice", value=str(list(blocks)))
        for block in blocks:
            if not 0 <= block < self.num_blocks or bool(self._is_taken[block]) is not is_taken:
                raise InternalError(
                    "a KV block is freed twice" if is_taken else "a KV block has two owners",
                    value=block,
                    limit=self.num_blocks,
                )
