"""The detokenizer: generated ids → text deltas, straight to each client's socket.

Woken by its doorbell (rung by samplers), by a client (subscription) or by the coscheduler (open,
close). All new text for one client goes out as one frame per wake-up.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from pathlib import Path

from hybridgen import fault
from hybridgen.clock import Clock, monotonic_s
from hybridgen.config import Config
from hybridgen.errors import HybridGenError, MessageCorrupt, SlowReader
from hybridgen.formats.inspect import inspect_model
from hybridgen.ipc.channel import Poller, Router, SendResult
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.coscheduler_line import CoschedulerLine
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.logprob_ring import LogprobRing
from hybridgen.ipc.runtime_dir import Endpoints
from hybridgen.ipc.slot_table import SlotState, SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import (
    UNASKED,
    AttachWorker,
    CloseText,
    Decoder,
    DetokenizerOrder,
    ErrorInfo,
    Message,
    OpenText,
    ReaderLost,
    SlotEvent,
    SubscribeText,
    TextDelta,
    TextDeltas,
    TextFinished,
    TextOrder,
    TextUnknown,
    WorkerAttached,
    WorkerSpec,
)
from hybridgen.request import FinishReason
from hybridgen.text.delivery import Delivery, SharedViews
from hybridgen.text.delivery_meter import DeliveryMeter
from hybridgen.text.vocabulary import Vocabulary, build_vocabulary
from hybridgen.workers.lifecycle import IDLE_WAIT_S, Entry, WorkerContext

logger = logging.getLogger(__name__)

#: A blocked socket is tried again after this long; nothing wakes us when it drains.
RETRY_WAIT_S = 0.01


def prepare(model_path: str, config: Config) -> Entry:
    """What a process in waiting does ahead: load the vocabulary."""
    return partial(run, vocabulary=load_vocabulary(model_path, config))


def run(spec: WorkerSpec, control: ControlSocket, vocabulary: Vocabulary | None = None) -> int:
    """Turn ids into text until told to exit; the exit code."""
    context = WorkerContext(spec, control)
    detokenizer = Detokenizer(context, vocabulary or load_vocabulary(spec.model_path, spec.config))
    detokenizer.introduce()
    context.ready()
    while not context.should_exit:
        detokenizer.turn()
    detokenizer.close()
    return 0


def load_vocabulary(model_path: str, config: Config) -> Vocabulary:
    """The model's vocabulary, with the tables that most requests want."""
    vocabulary = build_vocabulary(inspect_model(model_path, config).tokenizer)
    vocabulary.visible_texts(skip_special=True)
    return vocabulary


class Detokenizer:
    """Owns the text of the slots it was given.

    Args:
        context: of this process.
        vocabulary: of the model.
        clock: for slow readers.
    """

    def __init__(
        self, context: WorkerContext, vocabulary: Vocabulary, clock: Clock = monotonic_s
    ) -> None:
        spec = context.spec
        self._context = context
        self._clock = clock
        self._config: Config = spec.config
        self._vocabulary = vocabulary
        self._views = SharedViews(
            SlotTable(context.segment("slots").buf),
            TokenStore(context.segment("tokens").buf),
            LogprobRing(context.segment("logprobs").buf),
        )
        endpoints = Endpoints(Path(spec.runtime_dir))
        self._coscheduler = CoschedulerLine(spec, DetokenizerOrder)
        self._clients = Router(
            [endpoints.text(spec.index)], Decoder(TextOrder), on_corrupt=self._count_corrupt
        )
        self._doorbell = Doorbell(spec.doorbell_fds[context.name])
        self._poller = Poller()
        for source in (self._doorbell, self._clients, self._coscheduler, context.control):
            self._poller.add(source)
        self._open: dict[int, Delivery] = {}  # by slot: not reported, or wanted after that
        self._by_slot: dict[int, Delivery] = {}  # also the others, until the slot goes on
        self._by_request: dict[tuple[bytes, bytes], Delivery] = {}  # those, by client and request
        self._facts: list[Message] = []  # for the coscheduler, in one frame
        self._has_blocked = False
        self._meter = DeliveryMeter(context.line)

    def introduce(self, asked: AttachWorker = UNASKED) -> None:
        """Tell the coscheduler that this incarnation is here, and what it works on."""
        spec = self._context.spec
        self._facts.append(
            WorkerAttached(
                role=spec.role,
                index=spec.index,
                incarnation=spec.incarnation,
                answers=asked.coscheduler_incarnation,
                call=asked.call,
                open_slots=[
                    SlotEvent(text.slot, text.epoch)
                    for text in self._open.values()
                    if not text.is_reported
                ],
            )
        )
        self._tell()

    def turn(self) -> None:
        """Wait for anything, then move every text on."""
        ready = self._poller.poll(RETRY_WAIT_S if self._has_blocked else IDLE_WAIT_S)
        self._context.line.beat()
        if self._doorbell in ready:
            self._doorbell.clear()
        if self._context.control in ready:
            self._context.read_orders()
        while (order := self._coscheduler.receive()) is not None:
            self._handle_order(order)
        while (received := self._clients.receive()) is not None:
            self._subscribe(*received)
        self._deliver()
        self._tell()

    def close(self) -> None:
        """Close the sockets."""
        self._clients.close()
        self._coscheduler.close()

    def _handle_order(self, order: OpenText | CloseText | AttachWorker) -> None:
        if isinstance(order, AttachWorker):
            self.introduce(order)
            return
        known = self._by_slot.get(order.slot)
        if known is None or known.epoch != order.epoch:
            if isinstance(order, OpenText):
                self._open_text(order)
        elif known.is_reported:
            self._facts.append(known.report())  # asked again: the answer was lost
        elif isinstance(order, CloseText):
            known.close()

    def _open_text(self, order: OpenText) -> None:
        if self._views.slots.load(order.slot, SlotWord.EPOCH) != order.epoch:
            return  # the order is older than the slot's present occupant
        self._forget(order.slot)
        try:
            text = Delivery(
                order.slot,
                order.epoch,
                self._views,
                self._vocabulary,
                self._clock(),
                beat=self._context.line.beat,
            )
        except HybridGenError as error:  # damaged parameters: this request ends, others go on
            self._facts.append(ReaderLost(order.slot, order.epoch, ErrorInfo.of(error)))
            self._facts.append(_nothing_delivered(order, error))
            return
        self._open[text.slot] = self._by_slot[text.slot] = text
        self._by_request[text.client_id, text.request_id] = text

    def _forget(self, slot: int) -> None:
        old = self._by_slot.pop(slot, None)
        if old is None:
            return
        self._open.pop(slot, None)
        key = old.client_id, old.request_id
        if self._by_request.get(key) is old:
            del self._by_request[key]

    def _subscribe(self, client_id: bytes, order: SubscribeText) -> None:
        text = self._by_request.get((client_id, order.request_id))
        if text is None or not self._is_current(text):
            self._clients.send(client_id, TextUnknown(order.request_id))
            return
        now_s = self._clock()
        num_tokens = self._advance(text, now_s)
        if num_tokens is None:
            self._clients.send(client_id, TextUnknown(order.request_id))
            return
        self._count(num_tokens)
        text.subscribe(order.token_offset, order.char_offset, now_s)
        self._open[text.slot] = text

    def _is_current(self, text: Delivery) -> bool:
        slots = self._views.slots
        return (
            slots.load(text.slot, SlotWord.EPOCH) == text.epoch
            and slots.load(text.slot, SlotWord.STATE) != SlotState.FREE
        )

    def _deliver(self) -> None:
        began_s = now_s = self._clock()
        num_tokens = 0
        by_client: dict[bytes, list[Delivery]] = {}
        moving = [text for text in self._open.values() if not text.is_still()]
        for text in moving:
            num_tokens += self._advance(text, now_s) or 0
            if text.has_unsent and text.is_subscribed:
                by_client.setdefault(text.client_id, []).append(text)
        self._context.line.serve_nobody()
        self._has_blocked = False
        advanced_s = self._clock()
        for client_id, texts in by_client.items():
            self._send(client_id, texts, now_s)
        if self._open:
            self._account(advanced_s - began_s, self._clock() - advanced_s)
        for text in moving:
            self._settle(text, now_s)
        self._context.line.set("open_texts", len(self._open))
        self._count(num_tokens)

    def _advance(self, text: Delivery, now_s: float) -> int | None:
        """New tokens of a text; None when its words were damaged: it ends, others go on."""
        self._context.line.serve(text.slot, text.epoch)
        try:
            return text.advance(now_s)
        except HybridGenError as error:
            logger.warning("slot %d cannot be read: %s", text.slot, str(error))
            self._lose_reader(text, error, now_s)
            return None

    def _account(self, detokenize_s: float, send_s: float) -> None:
        line = self._context.line
        line.add("detokenize_ns", round(detokenize_s * 1e9))
        line.add("send_ns", round(send_s * 1e9))

    def _count(self, num_tokens: int) -> None:
        if num_tokens:
            self._context.line.tick()
            self._context.line.add("tokens", num_tokens)

    def _count_corrupt(self, _client_id: bytes, _frame: bytes, _error: MessageCorrupt) -> None:
        self._context.line.add("corrupt_frames", 1)

    def _send(self, client_id: bytes, texts: list[Delivery], now_s: float) -> None:
        pairs: list[tuple[Delivery, TextDelta]] = []
        for text in texts:
            try:
                delta = text.pending_delta()
            except HybridGenError as error:
                self._lose_reader(text, error, now_s)
                continue
            if text.is_reported and not self._is_current(text):
                self._forget(text.slot)  # what was just read may be another request's
            elif delta is not None:
                pairs.append((text, delta))
        if not pairs:
            return
        fault.point("detokenizer.send")
        result = self._clients.send(client_id, TextDeltas([delta for _, delta in pairs]))
        if result is SendResult.SENT:
            sent_s = self._clock()
            self._meter.sent(pairs, sent_s)
            for text, delta in pairs:
                text.mark_sent(delta, sent_s)
        elif result is SendResult.BLOCKED:
            self._has_blocked = True
            self._context.line.add("blocked_sends", 1)
        else:
            for text in texts:
                text.is_subscribed = False  # it will subscribe again when it is back

    def _settle(self, text: Delivery, now_s: float) -> None:
        if not text.is_reported and (text.is_delivered or (text.is_closed and text.is_finished)):
            self._facts.append(text.report())
        limit_s = self._config.scheduler.slow_reader_timeout_s
        waiting_s = now_s - text.idle_since_s
        is_slow = text.has_unsent and waiting_s > limit_s
        if text.is_reported:
            # A reader who is there gets the rest; one who is not subscribes again.
            if is_slow or not (text.has_unsent and text.is_subscribed):
                self._open.pop(text.slot, None)
        elif is_slow:
            error = SlowReader(
                "the client did not take its text",
                value=f"{waiting_s:.1f} s",
                limit=f"{limit_s} s",
                remedy="Read the stream, or raise --slow-reader-timeout-s",
            )
            self._lose_reader(text, error, now_s)

    def _lose_reader(self, text: Delivery, error: HybridGenError, now_s: float) -> None:
        self._open.pop(text.slot, None)
        if text.is_reported:
            return
        text.close(error)
        with contextlib.suppress(HybridGenError):  # it may be what is being reported here
            text.advance(now_s)
        self._facts.append(ReaderLost(text.slot, text.epoch, ErrorInfo.of(error)))
        self._facts.append(text.report())

    def _tell(self) -> None:
        if self._facts:
            facts, self._facts = self._facts, []
            self._coscheduler.tell(*facts)


def _nothing_delivered(order: OpenText, error: HybridGenError) -> TextFinished:
    return TextFinished(
        slot=order.slot,
        epoch=order.epoch,
        num_tokens=0,
        num_chars=0,
        finish_reason=int(FinishReason.CANCELLED),
        error=ErrorInfo.of(error),
    )
