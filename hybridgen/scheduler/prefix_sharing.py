"""Prompts that begin alike share KV blocks: who takes what, and who waits for whom.

Only full blocks are shared, and of each prompt at least the last token is left to compute, so a
row writes behind what it shares and no block has two writers. What a row computes is shared once
the gpu process has reported it.

Requests with the same prompt often come together. The first joins, and the others follow it: they
step aside, out of the way of those behind them, until it has computed what they have in common.
They wait no longer than it is being prefilled; if it leaves before, they go back in line, and the
first of them is the next that others follow.

Requests that are over or preempted leave their full blocks behind, generated tokens included, as
long as nobody needs the memory. Of a row that has given blocks back, because they are out of its
window, only those are shared that it joined with: what hangs below a lost block is found by nobody.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from hybridgen.ipc.token_store import TokenStore
from hybridgen.kvcache.block_pool import BlockPool
from hybridgen.kvcache.prefix_cache import CachedBlock, PrefixCache
from hybridgen.scheduler.request_record import RequestRecord


class Prefix(NamedTuple):
    """What a request that is about to join finds.

    Attributes:
        blocks: that it can share.
        leader: slot of a row that is computing more of its prompt; -1: nobody does.
        num_blocks: that it could share once the leader has computed them.
    """

    blocks: list[int]
    leader: int = -1
    num_blocks: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class _Follower:
    record: RequestRecord
    leader: int
    num_blocks: int


class PrefixSharing:
    """Beside ``GpuBatch``, which owns rows and blocks.

    Args:
        tokens: ids of prompts and texts; None: nothing is shared.
        block_size: tokens per KV block.
        least_tokens: less in common is not worth it.
    """

    def __init__(self, tokens: TokenStore | None, block_size: int, least_tokens: int) -> None:
        self._tokens = tokens
        self._block_size = block_size
        self._least_blocks = max(1, -(-least_tokens // block_size))
        self._cache: PrefixCache | None = None
        self._followers: dict[int, _Follower] = {}  # by slot
        self._last_look: tuple[tuple[int, ...], Prefix] | None = None
        self.num_looked_up_tokens = 0  # of prompts that joined
        self.num_hits = 0  # of these, prompts that shared a prefix
        self.num_hit_tokens = 0  # that were not computed again

    def reset(self, pool: BlockPool) -> list[RequestRecord]:
        """Nothing is known of any block; the followers, who go back in line."""
        self._cache = None if self._tokens is None else PrefixCache(pool)
        self._last_look = None
        followers = [follower.record for follower in self._followers.values()]
        self._followers.clear()
        return followers

    # --- joining ------------------------------------------------------------------------------

    def look(self, record: RequestRecord, num_tokens: int) -> Prefix:
        """What there is for the first ``num_tokens`` ids of the request's row."""
        cache = self._cache
        if cache is None:
            return Prefix([])
        # Whoever waits for room is looked at again and again.
        question = (record.slot, record.epoch, num_tokens, cache.num_changes)
        if self._last_look is None or self._last_look[0] != question:
            path = cache.find(self._ids(record, num_tokens - 1))
            self._last_look = question, self._prefix_of(path)
        return self._last_look[1]

    def follow(self, record: RequestRecord, prefix: Prefix) -> None:
        """``record`` steps aside until its leader has come so far."""
        self._followers[record.slot] = _Follower(record, prefix.leader, prefix.num_blocks)

    def joined(self, record: RequestRecord, num_tokens: int, num_cached: int) -> None:
        """It is a row now, and computes its ids from ``num_cached`` on."""
        record.num_to_prefill, record.num_written = num_tokens, num_cached
        self.num_looked_up_tokens += num_tokens
        if num_cached:
            self.num_hits += 1
            self.num_hit_tokens += num_cached
        if self._cache is not None:
            num_held = min(num_tokens, len(record.blocks) * self._block_size)
            ids = self._ids(record, num_held)
            self._cache.promise(ids, record.blocks, record.slot, record.num_freed)

    # --- being computed -----------------------------------------------------------------------

    def advanced(self, record: RequestRecord, num_tokens: int) -> list[RequestRecord]:
        """So many of its tokens are in the cache; who need not follow it any further."""
        first, stop = record.num_written // self._block_size, num_tokens // self._block_size
        record.num_written = max(record.num_written, num_tokens)
        if self._cache is not None:
            self._cache.confirm(record.blocks[first:stop], record.slot)
        return self._release(record.slot, stop)

    def prefilled(self, record: RequestRecord) -> list[RequestRecord]:
        """All that it joined with is in the cache; who need not follow it any further."""
        ready = self.advanced(record, record.num_to_prefill)
        return ready + self._release(record.slot)

    # --- leaving ------------------------------------------------------------------------------

    def gives_up(self, record: RequestRecord) -> list[RequestRecord]:
        """It is over, or is to leave: it follows nobody, and nobody follows it."""
        self._followers.pop(record.slot, None)
        if self._cache is not None and record.is_row:
            self._cache.retract(record.blocks, record.slot)
        return self._release(record.slot)

    def left(self, record: RequestRecord, num_generated: int) -> list[RequestRecord]:
        """The gpu process does not touch its row any more, and its blocks are about to be freed."""
        if self._cache is None:
            return []
        if record.num_freed:
            return self.gives_up(record)
        num_tokens = record.num_written
        if num_tokens and num_tokens == record.num_to_prefill:
            # The last token of a text was chosen, and not computed on.
            num_tokens = max(num_tokens, record.prompt_len + num_generated - 1)
        num_blocks = min(num_tokens // self._block_size, len(record.blocks))
        if num_blocks > record.num_written // self._block_size:
            blocks = record.blocks[:num_blocks]
            ids = self._ids(record, num_blocks * self._block_size)
            self._cache.promise(ids, blocks, record.slot)
            self._cache.confirm(blocks, record.slot)
        return self.gives_up(record)

    def distrust(self, record: RequestRecord) -> None:
        """What it computed, or computed on, is no good."""
        if self._cache is not None:
            self._cache.distrust(record.blocks)

    # --- inside -------------------------------------------------------------------------------

    def _prefix_of(self, path: list[CachedBlock]) -> Prefix:
        num_ready = next((i for i, entry in enumerate(path) if not entry.is_ready), len(path))
        blocks = [entry.block for entry in path[:num_ready]]
        if num_ready < self._least_blocks:
            blocks = []
        promised = path[num_ready:]
        leader = promised[0].writer if promised else -1
        num_promised = next(
            (i for i, entry in enumerate(promised) if entry.writer != leader), len(promised)
        )
        if num_ready + num_promised < len(blocks) + self._least_blocks:
            return Prefix(blocks)
        return Prefix(blocks, leader, num_ready + num_promised)

    def _ids(self, record: RequestRecord, num_tokens: int) -> bytes:
        if self._tokens is None:
            return b""
        return self._tokens.row(record.slot)[:num_tokens].tobytes()

    def _release(self, leader: int, num_blocks: int | None = None) -> list[RequestRecord]:
        """Followers of ``leader`` that need at most so many blocks of it; None: all."""
        released = [
            follower.record
            for follower in self._followers.values()
            if follower.leader == leader
            and (num_blocks is None or follower.num_blocks <= num_blocks)
        ]
        for record in released:
            del self._followers[record.slot]
        return released
