"""A Coscheduler with nothing around it: facts are spoken by the test, answers are read by it."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

from hybridgen.config import SchedulerSection
from hybridgen.ipc.slot_table import Finish, RowError, SlotState, SlotTable, SlotWord, pack_finish
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import (
    BatchRow,
    CancelRequest,
    EncodePrompt,
    JoinBatch,
    PromptEncoded,
    RequestFinished,
    RowProgress,
    SlotEvent,
    StepReport,
    SubmitRequest,
    TextFinished,
    WorkerAttached,
    WorkerDied,
)
from hybridgen.request import FinishReason, Prompt, SamplingParams, TextPrompt
from hybridgen.scheduler.coscheduler import Coscheduler
from hybridgen.scheduler.outbox import Addressed, ToClient, ToSupervisor, ToWorker
from hybridgen.scheduler.tree_shape import TreeShape
from tests.support.fake_clock import FakeClock

CLIENT = b"client-0123456-x"
Kind = TypeVar("Kind")


class SchedulerStage:
    """16-token blocks, pieces of 64 tokens."""

    def __init__(
        self,
        *,
        num_slots: int = 4,
        num_blocks: int = 32,
        num_detokenizers: int = 1,
        num_tokenizers: int = 1,
        has_workers: bool = True,
        has_tokens: bool = False,
        least_shared_tokens: int = 1,
        max_model_len: int = 128,
        kept_window: int = 0,
        **limits: Any,
    ) -> None:
        self.clock = FakeClock()
        self.table = SlotTable.in_memory(num_slots, max_model_len)
        self.limits = SchedulerSection(**limits)
        self.num_blocks = num_blocks
        self.shape = TreeShape(
            num_tokenizers=num_tokenizers,
            num_detokenizers=num_detokenizers,
            vocab_size=100,
            max_model_len=max_model_len,
            kept_window=kept_window,
            incarnation=1,
            least_shared_tokens=least_shared_tokens,
        )
        self.tokens = TokenStore.in_memory(num_slots, max_model_len) if has_tokens else None
        self.sent: list[Addressed] = []
        self._names = itertools.count(1)
        self.restart()
        if has_workers:
            self.attach_all()
        self.sent.clear()

    def restart(self) -> None:
        seeds = itertools.count(1000)
        self.scheduler = Coscheduler(
            self.table,
            self.shape,
            self.limits,
            self.clock,
            lambda: next(seeds),
            tokens=self.tokens,
        )
        self.scheduler.restore()
        self.take()

    def attach_all(self, rows: list[BatchRow] | None = None) -> None:
        for index in range(self.shape.num_tokenizers):
            self.attach("tokenizer", index)
        for index in range(self.shape.num_detokenizers):
            self.attach("detokenizer", index)
        self.attach_gpu(1, rows or [])

    def attach(self, role: str, index: int = 0, incarnation: int = 1) -> None:
        self.fact(WorkerAttached(role=role, index=index, incarnation=incarnation))

    def attach_gpu(self, incarnation: int, rows: list[BatchRow]) -> None:
        self.fact(
            WorkerAttached(
                role="gpu",
                index=0,
                incarnation=incarnation,
                rows=rows,
                num_blocks=self.num_blocks,
            )
        )

    def died(
        self,
        role: str,
        incarnation: int = 1,
        *,
        is_final: bool = False,
        served: SlotEvent | None = None,
    ) -> None:
        self.fact(WorkerDied(role, 0, incarnation, "killed", is_final, served))

    def take(self) -> None:
        self.sent += self.scheduler.take_outbox()

    def fact(self, message: Any) -> None:
        self.scheduler.handle_worker(message)
        self.take()

    def client(self, message: Any, client_id: bytes = CLIENT) -> None:
        self.scheduler.handle_client(client_id, message)
        self.take()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.scheduler.tick()
        self.take()

    def submit(
        self,
        prompt: Prompt | None = None,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        request_id: bytes | None = None,
        **params: Any,
    ) -> bytes:
        name = request_id or next(self._names).to_bytes(16, "big")
        self.client(
            SubmitRequest(
                request_id=name,
                prompt=prompt or TextPrompt("hello"),
                params=SamplingParams(**params),
                timeout_s=timeout_s,
                priority=priority,
            )
        )
        return name

    def pop(self, kind: type[Kind]) -> list[Kind]:
        """All messages of that kind sent so far, taken out."""
        found = [to.message for to in self.sent if isinstance(to.message, kind)]
        self.sent = [to for to in self.sent if not isinstance(to.message, kind)]
        return found

    def encode_all(self, num_tokens: int = 10) -> list[SlotEvent]:
        """Tokenizers answer; returns the slots in the order in which they were encoded."""
        orders = self.pop(EncodePrompt)
        for order in orders:
            self.fact(PromptEncoded(order.slot, order.epoch, num_tokens))
        return [SlotEvent(order.slot, order.epoch) for order in orders]

    def encode_all_ids(self) -> None:
        """Tokenizers write the ids of IdsPrompts, and answer."""
        for order in self.pop(EncodePrompt):
            assert self.tokens is not None
            self.tokens.write(order.slot, 0, order.prompt.ids)
            self.fact(PromptEncoded(order.slot, order.epoch, len(order.prompt.ids)))

    def cancel(self, request_id: bytes) -> None:
        self.client(CancelRequest(request_id))

    def run(self, num_tokens: int = 10) -> SlotEvent:
        """One request up to RUNNING; returns its slot."""
        self.encode_all(num_tokens)
        (join,) = self.pop(JoinBatch)
        row = SlotEvent(join.slot, join.epoch)
        self.fact(StepReport(step=1, prefilled=[row]))
        return row

    def starve(self, row: SlotEvent, num_tokens: int = 40) -> None:
        """The row has less than one block of room behind so many tokens."""
        progress = RowProgress(row.slot, row.epoch, num_tokens)
        self.fact(StepReport(step=2, starving=[progress]))

    def serve_one(self) -> None:
        """Whatever was asked for gets one token and is over."""
        row = self.run()
        self.sampled(row, 1, FinishReason.LENGTH)
        self.fact(StepReport(step=2, finished=[row]))
        self.text_finished(row, 1)

    def sampled(self, row: SlotEvent, generated: int, reason: FinishReason | None = None) -> None:
        """Samplers wrote these words."""
        if reason is not None:
            finish = Finish(reason, RowError.OK, generated)
            self.table.store(row.slot, SlotWord.FINISH, pack_finish(finish))
        self.table.store(row.slot, SlotWord.GENERATED, generated)

    def text_finished(
        self, row: SlotEvent, num_tokens: int, reason: FinishReason = FinishReason.LENGTH
    ) -> None:
        self.fact(
            TextFinished(
                slot=row.slot,
                epoch=row.epoch,
                num_tokens=num_tokens,
                num_chars=num_tokens,
                finish_reason=int(reason),
            )
        )

    def state(self, slot: int = 0) -> SlotState:
        return SlotState(self.table.load(slot, SlotWord.STATE))

    def finals(self) -> list[RequestFinished]:
        return self.pop(RequestFinished)

    def codes(self) -> list[str]:
        """Error codes of the final messages sent so far."""
        return [final.error.code if final.error else "" for final in self.finals()]

    def is_at_baseline(self) -> bool:
        report = self.scheduler.health()
        return (
            report.num_free_slots == report.num_slots
            and report.num_free_blocks == report.num_blocks
            and report.num_running == report.num_waiting == 0
        )


__all__ = ["CLIENT", "SchedulerStage", "ToClient", "ToSupervisor", "ToWorker"]
