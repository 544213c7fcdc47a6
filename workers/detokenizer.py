"""The detokenizer: generated ids → text deltas, straight to each client's socket.

Woken by its doorbell (rung by samplers), by a client (subscription) or by the coscheduler (open,
close). All new text for one client goes out as one frame per wake-up.
"""

from __future__ import annotations

import time
from pathlib import Path

from hybridgen.config import Config
from hybridgen.errors import HybridGenError, SlowReader
from hybridgen.formats.inspect import inspect_model
from hybridgen.ipc.channel import Dealer, Poller, Router, SendResult
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.logprob_ring import LogprobRing
from hybridgen.ipc.runtime_dir import Endpoints
from hybridgen.ipc.slot_table import SlotState, SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import (
    AttachWorker,
    CloseText,
    Decoder,
    DetokenizerOrder,
    ErrorInfo,
    OpenText,
    ReaderLost,
    SlotEvent,
    SubscribeText,
    TextDelta,
    TextDeltas,
    TextOrder,
    TextUnknown,
    WorkerAttached,
    WorkerSpec,
)
from hybridgen.text.delivery import Delivery, SharedViews
from hybridgen.text.vocabulary import build_vocabulary
from hybridgen.workers.lifecycle import IDLE_WAIT_S, WorkerContext

#: A blocked socket is tried again after this long; nothing wakes us when it drains.
RETRY_WAIT_S = 0.01


def run(spec: WorkerSpec, control: ControlSocket) -> int:
    """Turn ids into text until told to exit; the exit code."""
    context = WorkerContext(spec, control)
    detokenizer = Detokenizer(context)
    detokenizer.introduce()
    context.ready()
    while not context.should_exit:
        detokenizer.turn()
    detokenizer.close()
    return 0


class Detokenizer:
    """Owns the text of the slots it was given."""

    def __init__(self, context: WorkerContext) -> None:
        spec = context.spec
        self._context = context
        self._config: Config = spec.config
        info = inspect_model(spec.model_path, spec.config)
        self._vocabulary = build_vocabulary(info.tokenizer)
        self._views = SharedViews(
            SlotTable(context.segment("slots").buf),
            TokenStore(context.segment("tokens").buf),
            LogprobRing(context.segment("logprobs").buf),
        )
        endpoints = Endpoints(Path(spec.runtime_dir))
        self._coscheduler = Dealer(
            endpoints.workers, context.name.encode(), Decoder(DetokenizerOrder)
        )
        self._clients = Router([endpoints.text(spec.index)], Decoder(TextOrder))
        self._doorbell = Doorbell(spec.doorbell_fds[context.name])
        self._poller = Poller()
        for source in (self._doorbell, self._clients, self._coscheduler, context.control):
            self._poller.add(source)
        self._open: dict[int, Delivery] = {}  # by slot: not reported yet
        self._by_request: dict[bytes, Delivery] = {}  # also reported ones, until the slot goes on
        self._by_slot: dict[int, Delivery] = {}
        self._has_blocked = False

    def introduce(self, answers: int = 0) -> None:
        """Tell the coscheduler that this incarnation is here, and what it works on."""
        spec = self._context.spec
        self._coscheduler.send(
            WorkerAttached(
                role=spec.role,
                index=spec.index,
                incarnation=spec.incarnation,
                answers=answers,
                open_slots=[SlotEvent(text.slot, text.epoch) for text in self._open.values()],
            )
        )

    def turn(self) -> None:
        """Wait for anything, then move every text on."""
        self._poller.poll(RETRY_WAIT_S if self._has_blocked else IDLE_WAIT_S)
        self._doorbell.clear()
        self._context.read_orders()
        while (order := self._coscheduler.receive()) is not None:
            self._handle_order(order)
        while (received := self._clients.receive()) is not None:
            self._subscribe(*received)
        if self._open:
            self._deliver()

    def close(self) -> None:
        """Close the sockets."""
        self._clients.close()
        self._coscheduler.close()

    def _handle_order(self, order: OpenText | CloseText | AttachWorker) -> None:
        if isinstance(order, AttachWorker):
            self.introduce(order.coscheduler_incarnation)
            return
        known = self._by_slot.get(order.slot)
        is_same = known is not None and known.epoch == order.epoch
        if isinstance(order, OpenText):
            if not is_same:
                self._open_text(order)
            elif known is not None and known.is_reported:
                self._coscheduler.send(known.report())  # asked again: the answer was lost
        elif is_same and known is not None:
            known.close()

    def _open_text(self, order: OpenText) -> None:
        if self._views.slots.load(order.slot, SlotWord.EPOCH) != order.epoch:
            return  # the order is older than the slot's present occupant
        text = Delivery(order.slot, order.epoch, self._views, self._vocabulary, time.monotonic())
        self._forget(order.slot)
        self._open[text.slot] = self._by_slot[text.slot] = text
        self._by_request[text.request_id] = text

    def _forget(self, slot: int) -> None:
        old = self._by_slot.pop(slot, None)
        if old is not None:
            self._open.pop(slot, None)
            self._by_request.pop(old.request_id, None)

    def _subscribe(self, client_id: bytes, order: SubscribeText) -> None:
        text = self._by_request.get(order.request_id)
        if text is None or text.client_id != client_id or not self._is_current(text):
            self._clients.send(client_id, TextUnknown(order.request_id))
            return
        text.subscribe(order.token_offset, order.char_offset, time.monotonic())
        if text.is_reported:
            self._send(client_id, [text], time.monotonic())

    def _is_current(self, text: Delivery) -> bool:
        slots = self._views.slots
        return (
            slots.load(text.slot, SlotWord.EPOCH) == text.epoch
            and slots.load(text.slot, SlotWord.STATE) != SlotState.FREE
        )

    def _deliver(self) -> None:
        now_s = time.monotonic()
        num_tokens = 0
        by_client: dict[bytes, list[Delivery]] = {}
        for text in self._open.values():
            num_tokens += text.advance()
            if text.has_unsent and text.is_subscribed:
                by_client.setdefault(text.client_id, []).append(text)
        self._has_blocked = False
        for client_id, texts in by_client.items():
            self._send(client_id, texts, now_s)
        for text in list(self._open.values()):
            self._settle(text, now_s)
        if num_tokens:
            self._context.line.tick()
            self._context.line.add("tokens", num_tokens)

    def _send(self, client_id: bytes, texts: list[Delivery], now_s: float) -> None:
        pairs: list[tuple[Delivery, TextDelta]] = []
        for text in texts:
            try:
                delta = text.pending_delta()
            except HybridGenError as error:
                self._lose_reader(text, error)
                continue
            if delta is not None:
                pairs.append((text, delta))
        if not pairs:
            return
        result = self._clients.send(client_id, TextDeltas([delta for _, delta in pairs]))
        if result is SendResult.SENT:
            for text, delta in pairs:
                text.mark_sent(delta, now_s)
            self._context.line.add("deltas", len(pairs))
            self._context.line.add("frames", 1)
        elif result is SendResult.BLOCKED:
            self._has_blocked = True
            self._context.line.add("blocked_sends", 1)
        else:
            for text in texts:
                text.is_subscribed = False  # it will subscribe again when it is back

    def _settle(self, text: Delivery, now_s: float) -> None:
        if text.is_delivered or (text.is_closed and text.is_finished):
            # A closed text does not wait for its reader: who still wants it subscribes again.
            del self._open[text.slot]
            self._coscheduler.send(text.report())
        elif now_s - text.idle_since_s > self._config.scheduler.slow_reader_timeout_s and (
            text.has_unsent or text.is_finished
        ):
            limit_s = self._config.scheduler.slow_reader_timeout_s
            self._lose_reader(
                text,
                SlowReader(
                    "the client did not take its text",
                    value=f"{now_s - text.idle_since_s:.1f} s",
                    limit=f"{limit_s} s",
                    remedy="Read the stream, or raise --slow-reader-timeout-s",
                ),
            )

    def _lose_reader(self, text: Delivery, error: HybridGenError) -> None:
        text.close()
        text.advance()
        text.is_reported = True
        self._open.pop(text.slot, None)
        self._coscheduler.send(ReaderLost(text.slot, text.epoch, ErrorInfo.of(error)))
        self._coscheduler.send(text.report())
