"""Which KV blocks hold which tokens, so that prompts with the same beginning share them.

The content of a block follows from all tokens up to its end. So blocks form a tree: a full block
is found by the block before it and by its own token ids, both compared exactly. A dict does that,
with hashes that nobody outside can foresee; two different prefixes can never be taken for one.

::

    root ─ "You are a helpf" ─ "ul assistant. …" ┬ "… question"        is_ready: may be shared
                                                 └ "… other question"  writer 7: being computed

A block is entered when a row joins that will compute it, and may be shared once the gpu process
has said that it did. Serial numbers are never used again, so what hung below a block that is gone
is not found any more, and goes when its own block is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hybridgen.kvcache.block_pool import BlockPool

_ROOT = 0
_ID_BYTES = 4
_NOBODY = -1


@dataclasses.dataclass(eq=False, slots=True)
class CachedBlock:
    """A full block and the way to it."""

    serial: int
    key: tuple[int, bytes]  # serial of the block before, and its own ids as int32
    block: int
    writer: int  # slot of the row that is to compute it; -1: that is done

    @property
    def is_ready(self) -> bool:
        """Whether its KV is there."""
        return self.writer == _NOBODY


class PrefixCache:
    """The tree over one pool.

    Token ids are given as bytes, int32 each, from position 0 on; only whole blocks of them count.

    Attributes:
        num_changes: as long as it is the same, ``find`` finds the same.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_bytes = pool.block_size * _ID_BYTES
        self._by_key: dict[tuple[int, bytes], CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._num_serials = _ROOT
        self.num_changes = 0
        pool.on_lost = self._drop

    def __len__(self) -> int:
        """Blocks that are ready, or to be."""
        return len(self._by_key)

    def find(self, ids: bytes) -> list[CachedBlock]:
        """The longest known way along ``ids``; ready blocks and promised ones."""
        size, path, parent = self._block_bytes, list[CachedBlock](), _ROOT
        for stop in range(size, len(ids) + 1, size):
            found = self._by_key.get((parent, ids[stop - size : stop]))
            if found is None:
                break
            path.append(found)
            parent = found.serial
        return path

    def promise(self, ids: bytes, blocks: Sequence[int], writer: int, num_foreign: int = 0) -> None:
        """The row in slot ``writer`` is about to compute these ids into these blocks.

        What is known already stays where it is. The first ``num_foreign`` blocks are not the row's
        (they are out of its window): unless they are known, nothing behind them can be found.
        """
        path = self.find(ids)
        if len(path) < num_foreign:
            return
        size = self._block_bytes
        parent = path[-1].serial if path else _ROOT
        for index in range(len(path), len(ids) // size):
            self._drop(blocks[index])  # it may stand where nobody finds it any more
            self._num_serials += 1
            key = (parent, ids[index * size : (index + 1) * size])
            entry = CachedBlock(self._num_serials, key, blocks[index], writer)
            self._by_key[key] = self._by_block[entry.block] = entry
            self.num_changes += 1
            parent = entry.serial

    def confirm(self, blocks: Sequence[int], writer: int) -> None:
        """The row in slot ``writer`` has computed all of these blocks."""
        for block in blocks:
            entry = self._by_block.get(block)
            if entry is not None and entry.writer == writer:
                entry.writer = _NOBODY
                self.num_changes += 1
                self._pool.keep(block)

    def retract(self, blocks: Sequence[int], writer: int) -> None:
        """The row in slot ``writer`` will not compute those of its blocks that are not ready."""
        for block in blocks:
            entry = self._by_block.get(block)
            if entry is not None and entry.writer == writer:
                self._drop(block)

    def distrust(self, blocks: Sequence[int]) -> None:
        """The content of these blocks may be wrong: nobody is to share it any more."""
        for block in blocks:
            self._drop(block)

    def _drop(self, block: int) -> None:
        entry = self._by_block.pop(block, None)
        if entry is not None:
            del self._by_key[entry.key]
            self.num_changes += 1
            self._pool.forget(block)
