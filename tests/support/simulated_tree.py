"""A whole tree around one Coscheduler, with a fake clock and a random but repeatable schedule."""

from __future__ import annotations

import collections
import dataclasses
import random
from typing import Any

import msgspec

from hybridgen.config import SchedulerSection
from hybridgen.ipc.slot_table import SlotTable
from hybridgen.ipc.token_store import TokenStore
from hybridgen.kvcache.kv_window import KvWindow
from hybridgen.messages import (
    AckFinished,
    CancelRequest,
    RequestAccepted,
    RequestFinished,
    SubmitRequest,
    WorkerDied,
)
from hybridgen.request import IdsPrompt, SamplingParams
from hybridgen.scheduler.coscheduler import Coscheduler
from hybridgen.scheduler.outbox import ToClient, ToWorker
from hybridgen.scheduler.tree_shape import TreeShape
from tests.support.fake_clock import FakeClock
from tests.support.fault_proxy import NO_MISHAPS, Mishaps
from tests.support.simulated_link import SimulatedLink
from tests.support.simulated_workers import (
    EOS,
    VOCAB,
    SimulatedDetokenizer,
    SimulatedGpu,
    SimulatedTokenizer,
    SimulatedWorker,
    golden,
)

CLIENT = b"client-0123456-x"
PREFILL_CHUNK = 6


@dataclasses.dataclass
class Asked:
    """One request, as its client sees it."""

    order: SubmitRequest
    ids: list[int] = dataclasses.field(default_factory=list)
    finals: list[RequestFinished] = dataclasses.field(default_factory=list)
    num_accepted: int = 0
    is_acked: bool = False
    client_id: bytes = CLIENT

    @property
    def is_natural(self) -> bool:
        return bool(self.finals) and self.finals[0].finish_reason in ("stop", "length")


class SimulatedTree:
    """Links are FIFO; which link moves next is random."""

    def __init__(
        self,
        seed: int = 0,
        *,
        num_slots: int = 6,
        num_blocks: int = 12,
        block_size: int = 4,
        max_model_len: int = 40,
        max_num_seqs: int = 4,
        backlog_limit: int = 1000,
        num_tokenizers: int = 2,
        num_detokenizers: int = 2,
        duplicate_share: float = 0.0,
        request_timeout_s: float = 600.0,
        enable_prefix_caching: bool = True,
        kept_window: int = 0,
        mishaps: Mishaps = NO_MISHAPS,
    ) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.table = SlotTable.in_memory(num_slots, max_model_len)
        self.store = TokenStore.in_memory(num_slots, max_model_len)
        self.num_blocks, self.block_size, self.max_num_seqs = num_blocks, block_size, max_num_seqs
        self.duplicate_share = duplicate_share
        self.limits = SchedulerSection(
            max_num_seqs=max_num_seqs,
            backlog_limit=backlog_limit,
            request_timeout_s=request_timeout_s,
            enable_prefix_caching=enable_prefix_caching,
        )
        self.shape = TreeShape(
            num_tokenizers=num_tokenizers,
            num_detokenizers=num_detokenizers,
            vocab_size=VOCAB,
            max_model_len=max_model_len,
            eos_ids=(EOS,),
            block_size=block_size,
            kept_window=kept_window,
            piece_tokens=PREFILL_CHUNK,
        )
        self.asked: dict[bytes, Asked] = {}
        self.gone_clients: set[bytes] = set()
        self.replies: list[Any] = []
        self.to_supervisor: list[Any] = []
        self.orders: collections.deque[tuple[bytes, Any]] = collections.deque()
        self.workers: dict[str, SimulatedWorker] = {}
        self.links: dict[str, SimulatedLink] = {}
        self.mishaps = mishaps
        self.born: collections.Counter[str] = collections.Counter()
        for role, count in (
            ("tokenizer", num_tokenizers),
            ("gpu", 1),
            ("detokenizer", num_detokenizers),
        ):
            for index in range(count):
                self.start_worker(role, index)
        self.start_coscheduler()

    # --- processes ----------------------------------------------------------------------------

    def start_coscheduler(self) -> None:
        seeds = random.Random(7)
        self.shape = msgspec.structs.replace(self.shape, incarnation=self.shape.incarnation + 1)
        self.coscheduler = Coscheduler(
            self.table,
            self.shape,
            self.limits,
            self.clock,
            lambda: seeds.getrandbits(64),
            tokens=self.store,
        )
        for link in self.links.values():
            link.coscheduler_born(self.shape.incarnation)
        self.coscheduler.restore()
        self.flush()

    def kill_coscheduler(self) -> None:
        """What it had not yet read is lost; clients repeat their open requests."""
        for link in self.links.values():
            if self.random.random() < 0.5:
                link.facts.cut()
        self.orders.clear()
        self.start_coscheduler()
        for asked in self.asked.values():
            if not asked.finals:
                self.orders.append((asked.client_id, asked.order))
            elif asked.is_acked:
                self.orders.append((asked.client_id, AckFinished(asked.order.request_id)))

    def start_worker(self, role: str, index: int) -> None:
        name = f"{role}-{index}"
        self.born[name] += 1
        if name not in self.links:
            self.links[name] = SimulatedLink(name, self.random, self.mishaps)
        self.links[name].worker_born(self.born[name])
        common = (self.born[name], self.table, self.store)
        if role == "gpu":
            self.workers[name] = SimulatedGpu(
                *common,
                num_blocks=self.num_blocks,
                block_size=self.block_size,
                max_rows=self.max_num_seqs,
                prefill_chunk=PREFILL_CHUNK,
                kept_window=self.shape.kept_window,
            )
        elif role == "tokenizer":
            self.workers[name] = SimulatedTokenizer(index, *common)
        else:
            self.workers[name] = SimulatedDetokenizer(index, *common, self.deliver)

    def kill_worker(self, name: str, *, is_final: bool = False) -> None:
        worker = self.workers.pop(name)
        fact = WorkerDied(worker.role, worker.index, worker.incarnation, "killed", is_final)
        self.coscheduler.handle_worker(fact)
        self.flush()
        if not is_final:
            self.start_worker(worker.role, worker.index)

    @property
    def window(self) -> KvWindow:
        return KvWindow(self.shape.kept_window, self.block_size, PREFILL_CHUNK)

    @property
    def gpu(self) -> SimulatedGpu:
        gpu = self.workers["gpu-0"]
        assert isinstance(gpu, SimulatedGpu)
        return gpu

    # --- clients ------------------------------------------------------------------------------

    def submit(
        self,
        prompt: list[int],
        *,
        max_tokens: int | None = None,
        has_stop: bool = False,
        timeout_s: float | None = None,
        priority: int = 0,
        client_id: bytes = CLIENT,
    ) -> bytes:
        request_id = len(self.asked).to_bytes(16, "big")
        params = SamplingParams(max_tokens=max_tokens, stop=("stop",) if has_stop else ())
        order = SubmitRequest(
            request_id=request_id,
            prompt=IdsPrompt(prompt),
            params=params,
            timeout_s=timeout_s,
            priority=priority,
        )
        self.asked[request_id] = Asked(order, client_id=client_id)
        self.orders.append((client_id, order))
        return request_id

    def cancel(self, request_id: bytes) -> None:
        self.orders.append((self.asked[request_id].client_id, CancelRequest(request_id)))

    def deliver(self, client_id: bytes, request_id: bytes, offset: int, ids: list[int]) -> None:
        """Text from a detokenizer; repeats must agree with what is there."""
        if client_id in self.gone_clients:
            return
        have = self.asked[request_id].ids
        assert offset <= len(have), "a gap in the text"
        overlap = have[offset : offset + len(ids)]
        assert overlap == ids[: len(overlap)], "a repeat that differs"
        have += ids[len(overlap) :]

    def _reply(self, client_id: bytes, message: Any) -> None:
        self.replies.append(message)
        asked = self.asked.get(getattr(message, "request_id", b""))
        if asked is None:
            return
        if isinstance(message, RequestAccepted):
            asked.num_accepted += 1
        elif isinstance(message, RequestFinished):
            if not asked.finals:
                self.orders.append((client_id, AckFinished(message.request_id)))
                asked.is_acked = True
            asked.finals.append(message)

    # --- the schedule -------------------------------------------------------------------------

    def flush(self) -> None:
        for to in self.coscheduler.take_outbox():
            if isinstance(to, ToClient):
                if to.client_id in self.gone_clients:
                    self.coscheduler.handle_unreachable(to)
                else:
                    self._reply(to.client_id, to.message)
            elif isinstance(to, ToWorker):
                worker = self.workers.get(to.name)
                if worker is None:
                    self.coscheduler.handle_unreachable(to)
                else:
                    self.links[to.name].send(to.message)
            else:
                self.to_supervisor.append(to.message)

    def step(self) -> None:
        """Something happens somewhere."""
        actor = self.random.choice([None, None, "clock", *self.workers.values()])
        if actor == "clock":
            self.clock.advance(0.01)
            self.coscheduler.tick()
        elif actor is None:
            if self.orders:
                self.coscheduler.handle_client(*self.orders.popleft())
        elif isinstance(actor, SimulatedWorker):
            self._run(actor)
        self.flush()

    def _run(self, worker: SimulatedWorker) -> None:
        link = self.links[worker.name]
        link.serve(worker)
        if self.random.random() < 0.5:
            worker.step()
        elif isinstance(worker, SimulatedGpu):
            worker.run_step(worker.step if self.random.random() < 0.3 else lambda: None)
        elif isinstance(worker, SimulatedDetokenizer):
            worker.push_text()
        for _ in range(self.random.randrange(3)):
            fact = link.hear(self.coscheduler)
            if fact is not None and self.random.random() < self.duplicate_share:
                self.coscheduler.handle_worker(fact)

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    def run_until_idle(self, max_steps: int = 60_000) -> None:
        """Until every slot is free; then a little more, for what is still on its way."""
        for step in range(max_steps):
            self.step()
            if step % 20 == 0 and self._is_quiet():
                self.run(200)
                return
        raise AssertionError(f"not idle after {max_steps} steps: {self.coscheduler.health()}")

    def _is_quiet(self) -> bool:
        report = self.coscheduler.health()
        done = all(a.finals or a.client_id in self.gone_clients for a in self.asked.values())
        is_free = report.num_free_slots == report.num_slots
        return done and not self.orders and is_free and report.num_blocks == self.num_blocks

    # --- what must hold -----------------------------------------------------------------------

    def check_baseline(self) -> None:
        """Slots, blocks and rows are all back."""
        report = self.coscheduler.health()
        assert report.num_free_slots == report.num_slots
        assert report.num_free_blocks == report.num_blocks == self.num_blocks
        assert (report.num_running, report.num_waiting) == (0, 0)
        assert self.gpu.batch.num_rows == 0

    def check_ended(self) -> None:
        """Each request ended once, and those that ran to their end got the right ids."""
        for asked in self.asked.values():
            if asked.client_id in self.gone_clients:
                continue
            assert asked.finals, "a request without an end"
            assert len({_end(final) for final in asked.finals}) == 1, "two different ends"
            if asked.is_natural:
                self.check_text(asked)

    def check_text(self, asked: Asked) -> None:
        prompt = asked.order.prompt.ids
        params = asked.order.params
        room = self.shape.max_model_len
        if self.num_blocks < self.window.most_blocks:
            room = min(room, self.num_blocks * self.block_size + 1)
        max_len = room if params.max_tokens is None else len(prompt) + params.max_tokens
        want = golden(prompt, max_len, has_stop=bool(params.stop))
        assert asked.ids == want
        assert asked.finals[0].num_tokens == len(want)


def _end(final: RequestFinished) -> tuple[str, str]:
    return final.finish_reason, final.error.code if final.error else ""
