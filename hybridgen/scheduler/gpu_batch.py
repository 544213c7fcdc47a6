"""The gpu process as the coscheduler sees it: its rows, its KV blocks, and who waits for them.

Blocks are granted ahead: a joining row gets those of all its tokens plus LOOKAHEAD_BLOCKS, and
GRANT_BLOCKS more whenever less than one block of room is left. When none are left, the row of
the greatest rank — lowest priority, then youngest — gives all of its own back and starts over
later (preemption by recompute). The row of the smallest rank is never a victim while there are
others, and its request was admitted only because it fits alone, so something always finishes.

What the beginning of a prompt has in common with others is shared (``PrefixSharing``), and counts
only once. A block is free again only when the gpu process has said that its last row is off.

Where tokens attend to a window only, a row holds at most ``KvWindow.most_blocks``: it joins with no
more, and as the gpu process reports how far it is, blocks at the window's end come back and others
are granted at its front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybridgen.clock import Clock
from hybridgen.ipc.slot_table import RowError, SlotState
from hybridgen.kvcache.block_pool import BlockPool
from hybridgen.kvcache.kv_window import KvWindow
from hybridgen.messages import BatchRow, GrantBlocks, JoinBatch, RetireSlot
from hybridgen.scheduler.outbox import Outbox
from hybridgen.scheduler.overflows import Overflows
from hybridgen.scheduler.prefix_sharing import PrefixSharing
from hybridgen.scheduler.quarantine import Quarantine
from hybridgen.scheduler.queues import RequestQueue
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.request_record import RequestRecord
from hybridgen.scheduler.slot_ledger import SlotLedger
from hybridgen.scheduler.tree_shape import TreeShape

GPU = "gpu-0"
LOOKAHEAD_BLOCKS = 2
GRANT_BLOCKS = 2
#: While one suspect of killing the gpu process is tried, the next one waits for this look.
TRIAL_LOOK_S = 0.02


class GpuBatch:
    """Rows join, grow, and leave; nobody else touches blocks."""

    def __init__(
        self,
        *,
        shape: TreeShape,
        max_num_seqs: int,
        book: RequestBook,
        ledger: SlotLedger,
        quarantine: Quarantine,
        sharing: PrefixSharing,
        outbox: Outbox,
        clock: Clock,
    ) -> None:
        self._shape = shape
        self._window = KvWindow(shape.kept_window, shape.block_size, shape.piece_tokens)
        self._book = book
        self._ledger = ledger
        self._quarantine = quarantine
        self._sharing = sharing
        self._outbox = outbox
        self._clock = clock
        self.pool: BlockPool | None = None
        self.incarnation = -1
        self.is_attached = False
        self.call = 0  # as of a PoolWorker
        self.is_lost = False
        self.num_preempted = 0
        self.overflows = Overflows(max_num_seqs, clock)
        self.num_replayed_tokens = 0  # computed again for rows that had lost their KV cache
        self.waiting: RequestQueue[RequestRecord] = RequestQueue()
        self.rows: dict[int, RequestRecord] = {}  # by slot; also those that are retiring
        self._starving: dict[int, RequestRecord] = {}
        self._foreign: dict[tuple[int, int], list[int]] = {}  # rows of nobody, until retired
        self._num_returning = 0  # blocks of rows that are retiring

    @property
    def max_kv_tokens(self) -> int:
        """Tokens of one row that there are blocks for; -1 before the gpu process attached."""
        if self.pool is None:
            return -1
        if self.pool.num_blocks >= self._window.most_blocks:
            return self._shape.max_model_len
        return self.pool.num_blocks * self.pool.block_size

    @property
    def has_work(self) -> bool:
        """Whether steps are expected of the gpu process."""
        return bool(self.rows)

    @property
    def is_trying_suspect(self) -> bool:
        """Whether a row runs that may be what kills the gpu process: one at a time."""
        return any(record.is_suspect for record in self.rows.values())

    def next_s(self) -> float:
        """When ``schedule`` wants to be called next, though nobody said anything."""
        return self._clock() + TRIAL_LOOK_S if self.is_trying_suspect else math.inf

    def enqueue(self, record: RequestRecord) -> None:
        """Let ``record`` wait for its turn."""
        if math.isnan(record.encoded_s):
            record.encoded_s = self._clock()
        self._ledger.set_state(record, SlotState.WAITING)
        self.waiting.push(record)

    def prefilled(self, record: RequestRecord) -> None:
        """Its prompt is in the cache; from now on it is decoded."""
        self._wait_again(self._sharing.prefilled(record))
        self._slide(record, record.num_to_prefill)
        if math.isnan(record.prefilled_s):
            record.prefilled_s = self._clock()
        self._ledger.set_state(record, SlotState.RUNNING)

    def advanced(self, record: RequestRecord, num_tokens: int) -> None:
        """So many tokens of its prompt are in the cache."""
        self._wait_again(self._sharing.advanced(record, num_tokens))
        self._slide(record, num_tokens)
        num_in_all = record.prompt_len + self._ledger.num_generated(record)
        length = self._table_length(record, num_in_all, record.num_freed)
        self._ask(record, length - len(record.blocks))

    def withdraw(self, record: RequestRecord) -> None:
        """``record`` is over: it neither waits nor keeps a row."""
        self.waiting.remove(record)
        self._wait_again(self._sharing.gives_up(record))
        self._starving.pop(record.slot, None)
        record.is_starving = False
        self._retire(record)

    def take_off(self, record: RequestRecord) -> None:
        """The gpu process does not touch the row any more: its blocks are free."""
        if not record.is_row:
            return
        if record.is_retiring:
            self._num_returning -= record.num_returning
        if self._ledger.finish(record).row_error is RowError.INVALID_LOGITS:
            self._sharing.distrust(record)
        else:
            self._wait_again(self._sharing.left(record, self._ledger.num_generated(record)))
        if self.pool is not None:
            self.pool.free(record.held_blocks)
        self._forget_row(record)

    def retired_foreign(self, slot: int, epoch: int) -> None:
        """A row that belonged to no request is off."""
        blocks = self._foreign.pop((slot, epoch), None)
        if blocks is not None and self.pool is not None:
            self._num_returning -= len(blocks)
            self.pool.free(blocks)

    def starve(self, record: RequestRecord, num_tokens: int) -> None:
        """The row has less than one block of room behind so many tokens."""
        self._slide(record, num_tokens)
        self._ask(record, GRANT_BLOCKS)

    def preempt(self, record: RequestRecord) -> None:
        """Give up the row for now; it waits again once the gpu process has let go of it."""
        record.num_preemptions += 1
        self.num_preempted += 1
        self._starving.pop(record.slot, None)
        record.is_starving = False
        self._wait_again(self._sharing.gives_up(record))
        self._retire(record)

    def overflow(self, records: Sequence[RequestRecord]) -> None:
        """The device had no memory to compute these rows, which are off."""
        self.overflows.note(records, len(self.rows))
        for record in records:
            self.take_off(record)

    def schedule(self) -> None:
        """Use what is free: first for rows that stand still, then for those that wait."""
        self._clear_suspects()
        if not self.is_attached or self.pool is None:
            return
        if self._starving:
            self._feed(self.pool)
            self._make_room(self.pool)
        while self.waiting and not self._starving and self._join_next(self.pool):
            pass

    # --- attachment ---------------------------------------------------------------------------

    def assume_row(self, record: RequestRecord) -> None:
        """After a restart: the gpu process may hold this row; it will say so when it attaches."""
        record.is_row = True
        self.rows[record.slot] = record

    def attach(
        self, incarnation: int, num_blocks: int, rows: Sequence[BatchRow]
    ) -> list[RequestRecord]:
        """Take the gpu process's word for what it holds.

        Returns:
            Records whose row it does not hold (any more); the caller says what becomes of them.
        """
        self.incarnation = incarnation
        self.is_attached = True
        self.pool = BlockPool(num_blocks, self._shape.block_size)
        self._starving.clear()
        self._foreign.clear()
        self._num_returning = 0
        self._wait_again(self._sharing.reset(self.pool))
        known = {(row.slot, row.epoch) for row in rows}
        missing = [r for r in self.rows.values() if (r.slot, r.epoch) not in known]
        for absent in missing:
            self._forget_row(absent)
        self.pool.claim(self._claim(row) for row in rows)
        for row in rows:
            record = self._book.occupant(row.slot, row.epoch)
            if record is None or not record.is_row:
                self._disown(row)
            else:
                self._adopt(record, row)
        return missing

    def lose(self) -> list[RequestRecord]:
        """The process is gone, and with it all rows, which are returned."""
        self.is_attached = False
        self._starving.clear()
        self._foreign.clear()
        self._num_returning = 0
        lost = list(self.rows.values())
        for record in lost:
            self._forget_row(record)
        if self.pool is not None:
            self.pool = BlockPool(self.pool.num_blocks, self.pool.block_size)
            self._wait_again(self._sharing.reset(self.pool))
        return lost

    # --- inside -------------------------------------------------------------------------------

    def _clear_suspects(self) -> None:
        for record in self.rows.values():
            if record.is_suspect:
                self._quarantine.clear(record)

    def _wait_again(self, records: Sequence[RequestRecord]) -> None:
        for record in records:
            self.waiting.push(record)

    def _forget_row(self, record: RequestRecord) -> None:
        record.is_row = record.is_retiring = record.is_starving = False
        record.blocks, record.num_freed = [], 0
        self.rows.pop(record.slot, None)
        self._starving.pop(record.slot, None)

    def _adopt(self, record: RequestRecord, row: BatchRow) -> None:
        record.blocks, record.num_freed = list(row.blocks), self._num_freed(row)
        if record.is_over or record.is_retiring:
            record.is_retiring = False
            self._retire(record)
            return
        if row.num_computed >= record.prompt_len:
            self._ledger.set_state(record, SlotState.RUNNING)
        room = len(record.blocks) * self._shape.block_size - row.num_computed - 1
        if room < self._shape.block_size:
            self.starve(record, row.num_computed)

    def _num_freed(self, row: BatchRow) -> int:
        """Leading blocks of a table that are not the row's any more.

        A coscheduler that died may have given them to others, and knew no later position.
        """
        return self._window.first_kept(row.num_computed)

    def _claim(self, row: BatchRow) -> tuple[list[int], int]:
        num_freed = self._num_freed(row)
        num_full = row.num_computed // self._shape.block_size
        return row.blocks[num_freed:], num_full - num_freed

    def _disown(self, row: BatchRow) -> None:
        blocks = row.blocks[self._num_freed(row) :]
        self._foreign[row.slot, row.epoch] = blocks
        self._num_returning += len(blocks)
        self._outbox.to_worker(GPU, RetireSlot(row.slot, row.epoch))

    def _retire(self, record: RequestRecord) -> None:
        if not record.is_row or record.is_retiring:
            return
        record.is_retiring = True
        if self.pool is not None:
            record.num_returning = self.pool.num_sole(record.held_blocks)
            self._num_returning += record.num_returning
        if self.is_attached:
            self._outbox.to_worker(GPU, RetireSlot(record.slot, record.epoch))

    def _max_blocks(self, record: RequestRecord) -> int:
        # The last token of a text is never computed on.
        return -(-(record.max_len - 1) // self._shape.block_size)

    def _num_missing(self, record: RequestRecord) -> int:
        most = min(self._max_blocks(record), record.num_freed + self._window.most_blocks)
        return most - len(record.blocks)

    def _table_length(self, record: RequestRecord, num_tokens: int, num_freed: int) -> int:
        """Entries of the table of a row whose first ``num_tokens`` ids are to be computed."""
        wanted = -(-num_tokens // self._shape.block_size) + LOOKAHEAD_BLOCKS
        return min(wanted, self._max_blocks(record), num_freed + self._window.most_blocks)

    def _slide(self, record: RequestRecord, num_computed: int) -> None:
        """Give back what nothing behind so many tokens reads."""
        first = self._window.first_kept(num_computed)
        if self.pool is None or record.is_retiring or first <= record.num_freed:
            return
        self.pool.free(record.blocks[record.num_freed : first])
        record.num_freed = first

    def _ask(self, record: RequestRecord, num_blocks: int) -> None:
        """Let the row have so many blocks more, if it may, as soon as there are any."""
        if record.is_retiring or min(num_blocks, self._num_missing(record)) <= 0:
            return
        record.num_wanted = num_blocks
        record.is_starving = True
        self._starving[record.slot] = record

    def _feed(self, pool: BlockPool) -> None:
        for record in sorted(self._starving.values(), key=_rank):
            num_blocks = min(record.num_wanted, self._num_missing(record), pool.num_free)
            if num_blocks == 0:
                return
            first = len(record.blocks)
            blocks = pool.allocate(num_blocks)
            record.blocks += blocks
            record.is_starving = False
            del self._starving[record.slot]
            self._outbox.to_worker(GPU, GrantBlocks(record.slot, record.epoch, first, blocks))

    def _make_room(self, pool: BlockPool) -> None:
        while len(self._starving) > pool.num_free + self._num_returning:
            rows = [record for record in self.rows.values() if not record.is_retiring]
            if not rows:
                return
            self.preempt(max(rows, key=_rank))

    def _is_kept_out(self, record: RequestRecord) -> bool:
        is_second_suspect = record.is_suspect and self.is_trying_suspect
        return is_second_suspect or self.overflows.keeps_out(record, self.rows.values())

    def _join_next(self, pool: BlockPool) -> bool:
        if len(self.rows) + len(self._foreign) >= self.overflows.max_rows:
            return False
        record = self.waiting.peek()
        if record is None or self._is_kept_out(record):
            return False
        if len(self.rows) >= pool.num_free:
            return False  # at least one block is its own
        num_tokens = record.prompt_len + self._ledger.num_generated(record)
        prefix = self._sharing.look(record, num_tokens)
        if prefix.leader >= 0:
            self.waiting.pop()
            self._sharing.follow(record, prefix)
            return True
        num_cached = len(prefix.blocks) * pool.block_size
        num_freed = self._window.first_kept(num_cached)
        shared = prefix.blocks[num_freed:]
        num_blocks = self._table_length(record, num_tokens, num_freed) - len(prefix.blocks)
        # One block for each running row stays free, or the newcomer would be thrown out at once.
        if num_blocks + pool.num_idle(shared) + len(self.rows) > pool.num_free:
            return False
        self.waiting.pop()
        pool.share(shared)
        record.blocks, record.num_freed = prefix.blocks + pool.allocate(num_blocks), num_freed
        self._join(record, num_tokens, num_cached)
        return True

    def _join(self, record: RequestRecord, num_tokens: int, num_cached: int) -> None:
        record.is_row = True
        self.rows[record.slot] = record
        if num_tokens > record.prompt_len or not math.isnan(record.joined_s):
            self.num_replayed_tokens += num_tokens - num_cached
        if math.isnan(record.joined_s):
            record.joined_s = self._clock()
            record.num_cached = num_cached
        self._sharing.joined(record, num_tokens, num_cached)
        self._ledger.set_state(record, SlotState.PREFILL)
        self._outbox.to_worker(
            GPU,
            JoinBatch(
                slot=record.slot,
                epoch=record.epoch,
                detokenizer=record.detokenizer,
                num_tokens=num_tokens,
                num_cached=num_cached,
                blocks=list(record.blocks),
            ),
        )


def _rank(record: RequestRecord) -> tuple[int, int]:
    return record.rank
