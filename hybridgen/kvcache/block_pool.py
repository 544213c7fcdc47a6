"""Which KV blocks are free, and how many hold each of the others.

Blocks are numbered 0 … num_blocks-1 and mean what the gpu process makes of them; this file only
counts. A block is in one of three places::

    taken   by one holder or by several that share its content
    kept    free, with content that somebody may want: the one freed longest ago is given out first
    free    free, without; given out before any that is kept

Taking, sharing and giving back cost O(1) a block.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence

from hybridgen.errors import InternalError, OutOfBlocks


class BlockPool:
    """Counts holders.

    Args:
        num_blocks: that there are.
        block_size: tokens in each.

    Attributes:
        on_lost: told of a kept block whose content is given up, because the block is needed.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_lost: Callable[[int], None] = lambda _block: None
        # A stack: the block freed last is given out first, while it is warm.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._kept: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._num_holders = [0] * num_blocks
        self._is_worth_keeping = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that allocate() could give out."""
        return len(self._free) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Of these, blocks whose content is kept as long as they are not needed."""
        return len(self._kept)

    @property
    def num_taken(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold the KV of this many tokens."""
        return -(-num_tokens // self.block_size)

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks`` nobody holds."""
        return sum(self._num_holders[block] == 0 for block in blocks)

    def num_sole(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks`` have one holder only, so that they come back with it."""
        return sum(self._num_holders[block] == 1 for block in blocks)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks for one holder to write into; all of them or none.

        Raises:
            OutOfBlocks: fewer are free.
        """
        if num_blocks > self.num_free:
            raise OutOfBlocks(
                "not enough free KV blocks",
                value=num_blocks,
                limit=self.num_free,
                remedy="Wait for a request to finish, or preempt one",
            )
        if num_blocks <= 0:
            return []
        blocks = self._free[-num_blocks:][::-1]
        del self._free[-num_blocks:]
        while len(blocks) < num_blocks:
            blocks.append(self._give_up_oldest())
        for block in blocks:
            self._num_holders[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Hold blocks that have content, too, and only to read them; all of them or none.

        Raises:
            InternalError: a block has no content, is named twice, or does not exist.
        """
        self._check(
            blocks,
            lambda block: bool(self._num_holders[block]) or block in self._kept,
            "a KV block without content is shared",
        )
        for block in blocks:
            self._kept.pop(block, None)
            self._num_holders[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Hold them no longer; all of them or none.

        The end of a text goes before its beginning, which more texts may have in common.

        Raises:
            InternalError: a block is not taken, is named twice, or does not exist.
        """
        holders = self._num_holders
        self._check(blocks, lambda block: holders[block] > 0, "a KV block is freed twice")
        for block in reversed(blocks):
            holders[block] -= 1
            if holders[block] == 0:
                if self._is_worth_keeping[block]:
                    self._kept[block] = None
                else:
                    self._free.append(block)

    def keep(self, block: int) -> None:
        """From now on the content of a block that somebody holds is worth keeping."""
        self._is_worth_keeping[block] = 1

    def forget(self, block: int) -> None:
        """The content of a block is worth nothing any more."""
        self._is_worth_keeping[block] = 0
        if block in self._kept:
            del self._kept[block]
            self._free.append(block)

    def claim(self, rows: Iterable[tuple[Sequence[int], int]]) -> None:
        """Mark blocks that running rows already hold as taken (after a restart of the owner).

        Args:
            rows: of each its blocks from position 0 on, and how many leading ones it only reads;
                other rows may do so, too.

        Raises:
            InternalError: a block that a row may write is taken already; one is named twice, or
                does not exist. The pool is of no use then.
        """
        read: set[int] = set()
        for blocks, num_full in rows:
            self._claim_row(blocks, set(blocks[:num_full]), read)
        self._free = [block for block in self._free if not self._num_holders[block]]

    def _claim_row(self, blocks: Sequence[int], only_read: set[int], read: set[int]) -> None:
        holders = self._num_holders
        self._check(
            blocks,
            lambda block: not holders[block] or (block in only_read and block in read),
            "a KV block has two owners",
        )
        for block in blocks:
            holders[block] += 1
        read |= only_read

    def _give_up_oldest(self) -> int:
        block, _ = self._kept.popitem(last=False)
        self._is_worth_keeping[block] = 0
        self.on_lost(block)
        return block

    def _check(self, blocks: Sequence[int], is_good: Callable[[int], bool], complaint: str) -> None:
        if len(set(blocks)) != len(blocks):
            raise InternalError("a KV block is named twice", value=str(list(blocks)))
        for block in blocks:
            if not 0 <= block < self.num_blocks or not is_good(block):
                raise InternalError(complaint, value=block, limit=self.num_blocks)
