"""Tokenizer, gpu process with its samplers, and detokenizer, played without processes.

They obey ipc/layout.h on an in-memory slot table. KV blocks remember exactly what was computed
into them, so a block that two rows write, or a position left out, fails at once.
"""

from __future__ import annotations

import collections
import zlib
from collections.abc import Callable
from typing import Any

from hybridgen.ipc.slot_table import (
    Finish,
    RowError,
    SlotState,
    SlotTable,
    SlotWord,
    pack_finish,
    unpack_finish,
)
from hybridgen.ipc.token_store import TokenStore
from hybridgen.kvcache.kv_window import KvWindow
from hybridgen.messages import (
    UNASKED,
    AttachWorker,
    BatchRow,
    CloseText,
    EncodeProbe,
    EncodePrompt,
    GrantBlocks,
    JoinBatch,
    OpenText,
    ProbeEncoded,
    PromptEncoded,
    RetireSlot,
    SlotEvent,
    TextFinished,
    WorkerAttached,
)
from hybridgen.request import FinishReason
from hybridgen.scheduler.step_batch import StepBatch

VOCAB = 97
EOS = 0
STOP_TEXT = 13  # the detokenizer takes this id for a stop string, where one was asked for
NATURAL = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP_STRING)

FINISHED, STALE, NO_TOKEN = 1, 2, 4


def next_token(ids: list[int]) -> int:
    """The mock model: a hash of the whole context."""
    return zlib.crc32(repr(ids).encode()) % VOCAB


def golden(prompt: list[int], max_len: int, *, has_stop: bool) -> list[int]:
    """What a request must generate, alone and undisturbed."""
    ids = list(prompt)
    while len(ids) < max_len:
        ids.append(next_token(ids))
        if ids[-1] == EOS or (has_stop and ids[-1] == STOP_TEXT):
            break
    return ids[len(prompt) :]


class SimulatedWorker:
    """An inbox, and facts for the coscheduler."""

    role = ""

    def __init__(self, index: int, incarnation: int, table: SlotTable, store: TokenStore) -> None:
        self.name = f"{self.role}-{index}"
        self.index = index
        self.incarnation = incarnation
        self.table = table
        self.store = store
        self.inbox: collections.deque[Any] = collections.deque()
        self.facts: collections.deque[Any] = collections.deque([self.introduction()])

    def introduction(self, asked: AttachWorker = UNASKED) -> WorkerAttached:
        return WorkerAttached(
            role=self.role,
            index=self.index,
            incarnation=self.incarnation,
            answers=asked.coscheduler_incarnation,
            call=asked.call,
        )

    def step(self) -> None:
        """Handle one order."""
        if not self.inbox:
            return
        order = self.inbox.popleft()
        if isinstance(order, AttachWorker):
            self.facts.append(self.introduction(order))
        else:
            self.handle(order)

    def handle(self, order: Any) -> None:
        raise NotImplementedError


class SimulatedTokenizer(SimulatedWorker):
    role = "tokenizer"

    def handle(self, order: EncodePrompt | EncodeProbe) -> None:
        ids = order.prompt.ids
        if isinstance(order, EncodeProbe):
            self.facts.append(ProbeEncoded(order.probe_id, ids))
            return
        if self.table.load(order.slot, SlotWord.EPOCH) != order.epoch:
            return
        assert self.table.load(order.slot, SlotWord.STATE) != SlotState.FREE
        self.store.write(order.slot, 0, ids[: self.table.max_model_len])
        self.facts.append(PromptEncoded(order.slot, order.epoch, len(ids)))


class SimulatedGpu(SimulatedWorker):
    role = "gpu"

    def __init__(
        self,
        incarnation: int,
        table: SlotTable,
        store: TokenStore,
        *,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        prefill_chunk: int,
        kept_window: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.window = KvWindow(kept_window, block_size, prefill_chunk)
        self.most_held = 0  # blocks of one row, at any time
        self.block_size = block_size
        self.batch = StepBatch(
            max_rows, block_size, prefill_chunk, table.max_model_len, num_lanes=3
        )
        self.kv: dict[int, tuple[int, int]] = {}  # block × size + offset → (token id, context)
        self.step_number = self.num_cached_tokens = self.num_prefilled_tokens = 0
        super().__init__(0, incarnation, table, store)

    def introduction(self, asked: AttachWorker = UNASKED) -> WorkerAttached:
        if asked is not UNASKED:
            self._report()
        return WorkerAttached(
            role="gpu",
            index=0,
            incarnation=self.incarnation,
            answers=asked.coscheduler_incarnation,
            call=asked.call,
            rows=self.batch.rows(),
            num_blocks=self.num_blocks,
        )

    def handle(self, order: JoinBatch | GrantBlocks | RetireSlot) -> None:
        if isinstance(order, JoinBatch):
            self._check_cached(order)
            self.batch.join(order)
        elif isinstance(order, GrantBlocks):
            self.batch.grant(order)
        else:
            self.batch.retire(order)

    def run_step(self, during: Callable[[], None] = lambda: None) -> None:
        """One step; ``during`` is called while the samplers work."""
        rows = self.batch.decode_rows()
        logits: dict[int, list[int]] = {}
        chunk = self.batch.next_prefill()
        if chunk is not None:
            ids = self.store.read(chunk.slot, 0, chunk.stop)
            self.num_prefilled_tokens += chunk.stop - chunk.start
            for position in range(chunk.start, chunk.stop):
                self._compute(ids[: position + 1], chunk.blocks)
            if chunk.is_last:
                logits[chunk.logits_row] = ids
            self.batch.prefill_done(chunk)
        for index in range(rows.num_rows):
            logits[index] = self._decode(rows, index)
        headers = self.batch.row_headers()
        assert len(headers) == len(logits)
        during()
        if headers:
            self.step_number += 1
            results = [self._sample(header, logits[r]) for r, header in enumerate(headers)]
            self.batch.apply(results)
        self._report()

    def _report(self) -> None:
        report = self.batch.take_report(self.step_number)
        if report is not None:
            self.facts.append(report)

    def _check_cached(self, order: JoinBatch) -> None:
        """What a row shares was computed, from these very ids; the rest is its own."""
        num_shared = order.num_cached // self.block_size
        assert order.num_cached == num_shared * self.block_size < order.num_tokens
        self.num_cached_tokens += order.num_cached
        ids = self.store.read(order.slot, 0, order.num_cached)
        for position in self._positions_read(order.num_cached):
            held = self.kv.get(self._place(position, order.blocks))
            assert held == (ids[position], _digest(ids[: position + 1])), "shared too early"
        for row in self.batch.rows():
            if row.slot != order.slot:
                own = set(order.blocks[num_shared:])
                assert not own & set(self._held(row)), "a block with two owners"

    def _positions_read(self, position: int) -> range:
        """Positions before this one that its attention reads."""
        size = self.window.num_tokens
        return range(max(0, position - size + 1) if size else 0, position)

    def _held(self, row: BatchRow) -> list[int]:
        """Blocks that nobody else may write."""
        held = row.blocks[self.window.first_kept(row.num_computed) :]
        self.most_held = max(self.most_held, len(held))
        return held

    def _check_sole(self, block: int) -> None:
        holders = [row for row in self.batch.rows() if block in self._held(row)]
        assert len(holders) == 1, "a row writes into a block that others hold"

    def _compute(self, ids: list[int], blocks: Any) -> None:
        position = len(ids) - 1
        self._check_sole(int(blocks[position // self.block_size]))
        read = self._positions_read(position) if self.window.num_tokens else range(position)[-1:]
        for before in read:
            held = self.kv.get(self._place(before, blocks))
            assert held == (ids[before], _digest(ids[: before + 1])), "KV of the context is gone"
        self.kv[self._place(position, blocks)] = (ids[-1], _digest(ids))

    def _place(self, position: int, blocks: Any) -> int:
        return int(blocks[position // self.block_size]) * self.block_size + (
            position % self.block_size
        )

    def _decode(self, rows: Any, index: int) -> list[int]:
        position = int(rows.positions[index])
        header = self.batch._arrays.rows[index]  # the sampler's view names the slot only later
        ids = self.store.read(header.slot, 0, position + 1)
        if self.table.load(header.slot, SlotWord.EPOCH) != header.epoch:
            return ids
        assert ids[-1] == rows.ids[index], "decode input is not the last token"
        self._compute(ids, rows.block_tables[index])
        return ids

    def _sample(self, header: Any, ids: list[int]) -> tuple[int, int]:
        slot, table = header.slot, self.table
        if table.load(slot, SlotWord.EPOCH) != header.epoch:
            return -1, STALE | FINISHED
        prompt_len = table.load(slot, SlotWord.PROMPT_LEN)
        generated = header.position - prompt_len
        end = FinishReason(table.load(slot, SlotWord.END_REASON))
        if table.load(slot, SlotWord.STOP):
            end = FinishReason.STOP_STRING
        if end is not FinishReason.NONE:
            finish = Finish(end, RowError.OK, generated)
            table.store(slot, SlotWord.FINISH, pack_finish(finish))
            return -1, FINISHED | NO_TOKEN
        assert len(ids) == header.position
        assert table.load(slot, SlotWord.GENERATED) in (generated, generated + 1), (
            "gap in positions"
        )
        token = next_token(ids)
        self.store.write(slot, header.position, [token])
        reason = FinishReason.NONE
        if token == EOS:
            reason = FinishReason.STOP
        elif header.position + 1 >= table.load(slot, SlotWord.MAX_LEN):
            reason = FinishReason.LENGTH
        if reason is not FinishReason.NONE:
            finish = Finish(reason, RowError.OK, generated + 1)
            table.store(slot, SlotWord.FINISH, pack_finish(finish))
        table.store(slot, SlotWord.GENERATED, generated + 1)
        return token, FINISHED if reason is not FinishReason.NONE else 0


class SimulatedDetokenizer(SimulatedWorker):
    """One character per token; a text goes straight into the client's hands."""

    role = "detokenizer"

    def __init__(
        self,
        index: int,
        incarnation: int,
        table: SlotTable,
        store: TokenStore,
        deliver: Callable[[bytes, bytes, int, list[int]], None],
    ) -> None:
        self.texts: dict[tuple[int, int], int] = {}  # (slot, epoch) → tokens sent
        self.results: dict[tuple[int, int], TextFinished] = {}
        self.closed: set[tuple[int, int]] = set()
        self.deliver = deliver
        super().__init__(index, incarnation, table, store)

    def introduction(self, asked: AttachWorker = UNASKED) -> WorkerAttached:
        open_slots = [SlotEvent(*key) for key in self.texts]
        return WorkerAttached(
            role=self.role,
            index=self.index,
            incarnation=self.incarnation,
            answers=asked.coscheduler_incarnation,
            call=asked.call,
            open_slots=open_slots,
        )

    def handle(self, order: OpenText | CloseText) -> None:
        key = (order.slot, order.epoch)
        if key in self.results:
            self.facts.append(self.results[key])
        elif self.table.load(order.slot, SlotWord.EPOCH) == order.epoch:
            self.texts.setdefault(key, 0)
            if isinstance(order, CloseText):
                self.closed.add(key)

    def push_text(self) -> None:
        for key, num_sent in list(self.texts.items()):
            self._push(key, num_sent)

    def _push(self, key: tuple[int, int], num_sent: int) -> None:
        slot, epoch = key
        table = self.table
        if table.load(slot, SlotWord.EPOCH) != epoch:
            del self.texts[key]
            return
        finish = unpack_finish(table.load(slot, SlotWord.FINISH))
        generated = table.load(slot, SlotWord.GENERATED)
        prompt_len = table.load(slot, SlotWord.PROMPT_LEN)
        ids = self.store.read(slot, prompt_len + num_sent, prompt_len + generated)
        has_stop = self._has_stop(slot)
        if has_stop and STOP_TEXT in ids:
            ids = ids[: ids.index(STOP_TEXT) + 1]
            finish = Finish(FinishReason.STOP_STRING, RowError.OK, num_sent + len(ids))
            table.store(slot, SlotWord.STOP, 1 + finish.num_tokens)
        if ids:
            client_id, request_id = table.client_id(slot), table.request_id(slot)
            self.deliver(client_id, request_id, num_sent, ids)
            self.texts[key] = num_sent + len(ids)
        is_natural = finish.reason in NATURAL
        if is_natural or key in self.closed:
            reason = finish.reason
            if not is_natural:
                reason = FinishReason(table.load(slot, SlotWord.END_REASON))
            self._finish(key, reason)

    def _has_stop(self, slot: int) -> bool:
        from hybridgen.sampling.parameters import unpack

        return bool(unpack(self.table.parameters(slot))[0].stop)

    def _finish(self, key: tuple[int, int], reason: FinishReason) -> None:
        num_tokens = self.texts.pop(key)
        fact = TextFinished(
            slot=key[0],
            epoch=key[1],
            num_tokens=num_tokens,
            num_chars=num_tokens,
            finish_reason=int(reason),
        )
        self.results[key] = fact
        self.facts.append(fact)


def _digest(ids: list[int]) -> int:
    return zlib.crc32(repr(ids).encode())
