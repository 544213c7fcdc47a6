"""The gpu process's post: orders from the coscheduler into a batch, reports of the batch back."""

from __future__ import annotations

from typing import Protocol

import msgspec

from hybridgen.ipc.channel import Poller
from hybridgen.ipc.coscheduler_line import CoschedulerLine
from hybridgen.messages import (
    UNASKED,
    AttachWorker,
    BatchRow,
    GpuOrder,
    GrantBlocks,
    JoinBatch,
    RetireSlot,
    StepReport,
    WorkerAttached,
)
from hybridgen.workers.lifecycle import WorkerContext


class Batch(Protocol):
    """What orders are about."""

    def join(self, order: JoinBatch) -> None:
        """Take a sequence in."""
        ...

    def grant(self, order: GrantBlocks) -> None:
        """Extend a row's block table."""
        ...

    def retire(self, order: RetireSlot) -> None:
        """Take a row out."""
        ...

    def rows(self) -> list[BatchRow]:
        """All rows."""
        ...

    def take_report(self, step: int) -> StepReport | None:
        """What happened since the last report."""
        ...


class OrderDesk:
    """One socket to the coscheduler."""

    def __init__(self, context: WorkerContext, batch: Batch, num_blocks: int) -> None:
        self._context = context
        self._batch = batch
        self._num_blocks = num_blocks
        self._coscheduler = CoschedulerLine(context.spec, GpuOrder)
        self._step = 0  # of the last report
        self._poller = Poller()
        self._poller.add(self._coscheduler)
        self._poller.add(context.control)

    def introduce(self, asked: AttachWorker = UNASKED) -> None:
        """Tell the coscheduler who is here, with how many blocks and which rows."""
        spec = self._context.spec
        self.send_report(self._step)  # what has happened comes before how things stand now
        self._coscheduler.tell(
            WorkerAttached(
                role=spec.role,
                index=spec.index,
                incarnation=spec.incarnation,
                answers=asked.coscheduler_incarnation,
                call=asked.call,
                rows=self._batch.rows(),
                num_blocks=self._num_blocks,
            )
        )

    def take_orders(self) -> None:
        """Hand every order that waits to the batch; never blocks."""
        while (order := self._coscheduler.receive()) is not None:
            if isinstance(order, JoinBatch):
                self._batch.join(order)
            elif isinstance(order, GrantBlocks):
                self._batch.grant(order)
            elif isinstance(order, RetireSlot):
                self._batch.retire(order)
            elif isinstance(order, AttachWorker):
                self.introduce(order)

    def send_report(self, step: int) -> None:
        """Send what happened since the last report, if anything."""
        self._step = step
        report = self._batch.take_report(step)
        if report is not None:
            incarnation = self._context.spec.incarnation
            self._coscheduler.tell(msgspec.structs.replace(report, incarnation=incarnation))

    def rest(self, timeout_s: float) -> None:
        """Sleep until an order comes, at most so long."""
        self._poller.poll(timeout_s)
        self._context.read_orders()

    def close(self) -> None:
        """Close the socket."""
        self._coscheduler.close()
