"""The sockets around the state machine: who is answered, in which order, and what is counted."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest
import zmq

from hybridgen.errors import InvalidRequest
from hybridgen.ipc.channel import Dealer, Router, SendResult
from hybridgen.ipc.link_end import LinkEnd
from hybridgen.ipc.slot_table import SlotState, SlotWord
from hybridgen.messages import (
    AckFinished,
    AttachWorker,
    ClientReply,
    CloseText,
    Decoder,
    DetokenizerOrder,
    DrainWorker,
    EncodePrompt,
    ErrorInfo,
    GpuOrder,
    HealthReport,
    JoinBatch,
    Message,
    OpenText,
    PromptEncoded,
    PromptRejected,
    QueryHealth,
    RequestAccepted,
    RequestFinished,
    RetireSlot,
    SlotEvent,
    Stamped,
    StepReport,
    SubmitRequest,
    TextFinished,
    TokenizerOrder,
    WorkerAttached,
    WorkerReady,
)
from hybridgen.request import FinishReason, IdsPrompt, SamplingParams, TextPrompt
from hybridgen.scheduler import clients
from hybridgen.scheduler.outbox import ToWorker
from hybridgen.workers import coscheduler
from hybridgen.workers.coscheduler import MAX_IN_FRAME, CoschedulerHost, frames, run
from tests.support.eventually import eventually
from tests.workers.workplace import Workplace

ALICE, BOB = b"client-alice-000", b"client-bob-00000"
REQUEST = b"request-00000000"
ORDERS = {"gpu": GpuOrder, "tokenizer": TokenizerOrder, "detokenizer": DetokenizerOrder}


class Peer:
    """A client or a worker of the host, and what it was told."""

    def __init__(self, place: Workplace, endpoint: str, identity: bytes, replies: Any) -> None:
        self._dealer = Dealer(endpoint, identity, Decoder(replies))
        place.adopt(self._dealer)
        self.received: list[Any] = []

    def say(self, *messages: Message) -> None:
        for message in messages:
            self._dealer.send(message)

    def send_raw(self, *parts: bytes) -> None:
        self._dealer.sockets[0].send_multipart(parts, zmq.NOBLOCK)

    def leave(self) -> None:
        self._dealer.close()

    def hear(self, kind: type[Any]) -> list[Any]:
        """All messages of one kind so far."""
        while (message := self._dealer.receive()) is not None:
            self.received.append(message)
        return [message for message in self.received if isinstance(message, kind)]


class WorkerPeer(Peer):
    """A worker; it numbers its frames."""

    def __init__(self, place: Workplace, name: str, orders: Any) -> None:
        super().__init__(place, place.endpoints.workers, name.encode(), Stamped[orders])
        self._end = LinkEnd(1)

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.send_frame(self.stamp(message))

    def stamp(self, message: Message) -> Stamped[Any]:
        frame = self._end.stamp(message)
        self._end.sent()
        return frame

    def send_frame(self, frame: Stamped[Any]) -> None:
        self._dealer.send(frame)

    def lose(self) -> None:
        """The next frame gets lost on the way."""
        self._end.sent()

    def hear(self, kind: type[Any]) -> list[Any]:
        while (frame := self._dealer.receive()) is not None:
            self.received += self._end.take(frame)
        return [message for message in self.received if isinstance(message, kind)]


class GatedRouter(Router):
    """Says that a peer's queue is full for as long as the test wants."""

    shut: ClassVar[set[bytes]] = set()

    def send(self, identity: bytes, message: Message) -> SendResult:
        return SendResult.BLOCKED if identity in self.shut else super().send(identity, message)


class Tree:
    """A host with the workers that a request needs, played by the test."""

    def __init__(self, place: Workplace, incarnation: int = 1) -> None:
        self.place = place
        self.host = CoschedulerHost(place.context("coscheduler-0", incarnation=incarnation))
        place.adopt(self.host)
        self.workers = {
            role: WorkerPeer(place, f"{role}-0", orders) for role, orders in ORDERS.items()
        }

    def attach(self) -> None:
        for role, worker in self.workers.items():
            num_blocks = 64 if role == "gpu" else 0
            worker.say(WorkerAttached(role=role, index=0, incarnation=1, num_blocks=num_blocks))
        self.turn_until(lambda: self.counters()["free_blocks"] == 64)

    def client(self, identity: bytes) -> Peer:
        return Peer(self.place, self.place.endpoints.clients, identity, ClientReply)

    def turn_until(self, predicate: Any) -> None:
        def turned() -> object:
            self.host.turn()
            return predicate()

        eventually(turned, 5.0)

    def counters(self) -> dict[str, int]:
        return self.place.snapshot("coscheduler-0").counters


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns come back at once, also when nothing has arrived yet."""
    monkeypatch.setattr(coscheduler, "IDLE_WAIT_S", 0.002)
    monkeypatch.setattr(coscheduler, "Router", GatedRouter)
    GatedRouter.shut.clear()


def submit(request_id: bytes = REQUEST) -> SubmitRequest:
    return SubmitRequest(
        request_id=request_id, prompt=TextPrompt("hello"), params=SamplingParams(max_tokens=3)
    )


def test_a_request_goes_from_its_client_to_the_workers_and_back(workplace: Workplace) -> None:
    tree = Tree(workplace)
    tree.attach()
    gpu, tokenizer, detokenizer = (tree.workers[role] for role in ORDERS)
    alice = tree.client(ALICE)
    alice.say(submit())
    tree.turn_until(lambda: tokenizer.hear(EncodePrompt) and detokenizer.hear(OpenText))
    (order,) = tokenizer.hear(EncodePrompt)
    where = {"slot": order.slot, "epoch": order.epoch}
    tokenizer.say(PromptEncoded(num_tokens=2, **where))
    tree.turn_until(lambda: gpu.hear(JoinBatch))
    assert gpu.hear(JoinBatch)[0].num_tokens == 2
    event = SlotEvent(order.slot, order.epoch)
    workplace.generate(order.slot, [65, 66, 67])
    gpu.say(StepReport(step=3, prefilled=[event], finished=[event]))
    detokenizer.say(
        TextFinished(num_tokens=3, num_chars=3, finish_reason=FinishReason.LENGTH, **where)
    )
    tree.turn_until(lambda: alice.hear(RequestFinished))
    (finished,) = alice.hear(RequestFinished)
    assert (finished.finish_reason, finished.num_tokens, finished.num_prompt_tokens) == (
        "length",
        3,
        2,
    )
    assert [type(message) for message in alice.received] == [RequestAccepted, RequestFinished]
    alice.say(AckFinished(REQUEST))
    tree.turn_until(lambda: workplace.slots.load(order.slot, SlotWord.STATE) == SlotState.FREE)
    tree.turn_until(lambda: tree.counters()["finished"] == 1)
    counters = tree.counters()
    assert (counters["accepted"], counters["running"], counters["free_blocks"]) == (1, 0, 64)
    assert workplace.snapshot("coscheduler-0").progress == 1


def test_a_malformed_order_with_a_legible_request_is_refused_typed(workplace: Workplace) -> None:
    tree = Tree(workplace)
    alice = tree.client(ALICE)
    order = msgspec.to_builtins(submit(), builtin_types=(bytes,))
    alice.send_raw(msgspec.msgpack.encode({**order, "params": {"temperature": "hot"}}))
    tree.turn_until(lambda: alice.hear(RequestFinished))
    (refused,) = alice.received
    assert (refused.request_id, refused.finish_reason) == (REQUEST, "error")
    assert refused.error.code == "invalid_request"
    assert "params.temperature" in refused.error.message
    tree.turn_until(lambda: tree.counters()["corrupt_frames"] == 1)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x81\xa2\xff\xfe\x01",
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode({"type": "SubmitRequest", "request_id": b"short"}),
        msgspec.msgpack.encode({"type": "SubmitRequest", "request_id": "text-of-16-chars"}),
        msgspec.msgpack.encode([1, 2, 3]),
    ],
    ids=lambda frame: frame[:6].hex() or "empty",
)
def test_an_illegible_frame_is_counted_and_not_answered(workplace: Workplace, frame: bytes) -> None:
    tree = Tree(workplace)
    alice = tree.client(ALICE)
    alice.send_raw(frame)
    alice.say(QueryHealth(REQUEST))
    tree.turn_until(lambda: alice.hear(HealthReport))
    assert len(alice.received) == 1
    tree.turn_until(lambda: tree.counters()["corrupt_frames"] == 1)


def test_a_frame_of_several_parts_is_counted(workplace: Workplace) -> None:
    tree = Tree(workplace)
    alice = tree.client(ALICE)
    alice.send_raw(b"one", b"two", b"three")
    tree.turn_until(lambda: tree.counters()["corrupt_frames"] == 1)


def test_a_full_queue_keeps_its_order_and_holds_up_nobody_else(workplace: Workplace) -> None:
    tree = Tree(workplace)
    alice, bob = tree.client(ALICE), tree.client(BOB)
    alice.say(QueryHealth(b"request-------00"))
    bob.say(QueryHealth(REQUEST))
    tree.turn_until(lambda: alice.hear(HealthReport) and bob.hear(HealthReport))
    GatedRouter.shut.add(ALICE)
    for number in range(1, 10):
        alice.say(QueryHealth(b"request-------%02d" % number))
        tree.host.turn()
        bob.say(QueryHealth(REQUEST))
        tree.turn_until(lambda number=number: len(bob.hear(HealthReport)) == number + 1)
    assert len(alice.hear(HealthReport)) == 1
    GatedRouter.shut.clear()
    tree.turn_until(lambda: len(alice.hear(HealthReport)) == 10)
    assert [report.request_id for report in alice.received] == [
        b"request-------%02d" % number for number in range(10)
    ]


def test_a_client_that_reads_nothing_is_kept_a_limited_number_of_messages(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coscheduler, "MAX_WAITING", 2)
    tree = Tree(workplace)
    alice, bob = tree.client(ALICE), tree.client(BOB)
    alice.say(QueryHealth(REQUEST))
    tree.turn_until(lambda: alice.hear(HealthReport))
    GatedRouter.shut.add(ALICE)
    alice.say(*[QueryHealth(REQUEST)] * 5)
    bob.say(QueryHealth(REQUEST))
    tree.turn_until(lambda: tree.host._waiting and bob.hear(HealthReport))
    unreachable = tree.host._scheduler._clients._absent
    tree.turn_until(lambda: ALICE in unreachable)
    (waiting,) = tree.host._waiting.values()
    assert len(waiting) == 2


def test_a_full_queue_takes_no_knocks(workplace: Workplace) -> None:
    tree = Tree(workplace)
    outbox = tree.host._scheduler._outbox
    GatedRouter.shut.add(ALICE)
    for request_id in (REQUEST, b"", b""):
        outbox.to_client(ALICE, HealthReport(request_id=request_id, is_ready=True, status=""))
    tree.host.turn()
    (waiting,) = tree.host._waiting.values()
    assert len(waiting) == 1


def test_what_waits_for_a_client_that_left_is_dropped(workplace: Workplace) -> None:
    tree = Tree(workplace)
    alice = tree.client(ALICE)
    alice.say(QueryHealth(REQUEST))
    tree.turn_until(lambda: alice.hear(HealthReport))
    GatedRouter.shut.add(ALICE)
    alice.say(QueryHealth(REQUEST), QueryHealth(REQUEST))
    tree.turn_until(lambda: tree.host._waiting)
    alice.leave()
    GatedRouter.shut.clear()
    tree.turn_until(lambda: not tree.host._waiting)


def test_the_slot_of_a_client_that_left_does_not_wait_for_its_confirmation(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "RECONNECT_S", 0.0)
    tree = Tree(workplace)
    tree.attach()
    tokenizer, detokenizer = tree.workers["tokenizer"], tree.workers["detokenizer"]
    alice = tree.client(ALICE)
    alice.say(submit())
    tree.turn_until(lambda: tokenizer.hear(EncodePrompt) and detokenizer.hear(OpenText))
    alice.leave()
    send = tree.host._clients.send
    eventually(lambda: send(ALICE, RequestAccepted(REQUEST, 0, 0)) is SendResult.GONE, 5.0)
    (order,) = tokenizer.hear(EncodePrompt)
    error = ErrorInfo.of(InvalidRequest("this cannot be encoded"))
    tokenizer.say(PromptRejected(order.slot, order.epoch, error))
    tree.turn_until(lambda: detokenizer.hear(CloseText))
    flushed = TextFinished(
        slot=order.slot,
        epoch=order.epoch,
        num_tokens=0,
        num_chars=0,
        finish_reason=FinishReason.CANCELLED,
    )
    detokenizer.say(flushed)
    tree.turn_until(lambda: workplace.slots.load(order.slot, SlotWord.STATE) == SlotState.FREE)


def test_a_replacement_takes_requests_up_from_the_slots_and_asks_who_is_there(
    workplace: Workplace,
) -> None:
    epoch = workplace.fill_slot(0, SamplingParams(), [1, 2, 3], client_id=ALICE)
    workplace.slots.store(0, SlotWord.STATE, SlotState.WAITING)
    tree = Tree(workplace, incarnation=2)
    tree.turn_until(lambda: all(peer.hear(AttachWorker) for peer in tree.workers.values()))
    assert all(
        peer.hear(AttachWorker)[0].coscheduler_incarnation == 2 for peer in tree.workers.values()
    )
    for role, peer in tree.workers.items():
        peer.say(
            WorkerAttached(
                role=role,
                index=0,
                incarnation=1,
                answers=2,
                num_blocks=64 if role == "gpu" else 0,
            )
        )
    gpu = tree.workers["gpu"]
    tree.turn_until(lambda: gpu.hear(JoinBatch) and tree.workers["detokenizer"].hear(OpenText))
    (joined,) = gpu.hear(JoinBatch)
    assert (joined.slot, joined.epoch, joined.num_tokens) == (0, epoch, 3)


def test_a_prompt_of_ids_outside_the_vocabulary_is_the_tokenizers_to_refuse(
    workplace: Workplace,
) -> None:
    tree = Tree(workplace)
    tree.attach()
    alice = tree.client(ALICE)
    order = SubmitRequest(request_id=REQUEST, prompt=IdsPrompt([]), params=SamplingParams(top_p=2))
    alice.say(order)
    tree.turn_until(lambda: alice.hear(RequestFinished))
    (refused,) = alice.hear(RequestFinished)
    assert refused.error.code == "invalid_request"
    tree.turn_until(lambda: tree.counters()["rejected"] == 1)
    assert tree.workers["tokenizer"].hear(EncodePrompt) == []


def test_runs_until_it_is_told_to_exit(workplace: Workplace) -> None:
    context = workplace.context("coscheduler-0")
    workplace.order("coscheduler-0", DrainWorker())
    assert run(context.spec, context.control) == 0
    assert [type(fact) for fact in workplace.facts("coscheduler-0")] == [WorkerReady]


def test_garbage_and_strangers_on_the_workers_socket_are_dropped_and_counted(
    workplace: Workplace,
) -> None:
    tree = Tree(workplace)
    tree.attach()
    stranger = WorkerPeer(workplace, "sampler-9", GpuOrder)
    stranger.say(WorkerAttached(role="gpu", index=0, incarnation=9, num_blocks=1))
    tree.workers["gpu"].send_raw(b"\xc1 no message")
    tree.workers["gpu"].send_raw(b"one part", b"too many")
    tree.turn_until(lambda: tree.counters()["corrupt_frames"] == 3)
    assert tree.counters()["free_blocks"] == 64


def test_a_frame_that_is_lost_or_doubled_is_counted_and_its_worker_asked(
    workplace: Workplace,
) -> None:
    tree = Tree(workplace)
    tree.attach()
    gpu = tree.workers["gpu"]
    gpu.lose()
    report = gpu.stamp(StepReport(step=1))
    for _ in range(2):
        gpu.send_frame(report)
    tree.turn_until(lambda: any(call.call == 1 for call in gpu.hear(AttachWorker)))
    tree.turn_until(lambda: tree.counters()["repeated_frames"] == 1)
    assert tree.counters()["missed_frames"] == 1


def test_orders_of_a_turn_share_frames_and_prompts_go_alone() -> None:
    retired = [ToWorker("gpu-0", RetireSlot(slot, 1)) for slot in range(MAX_IN_FRAME + 1)]
    opened = ToWorker("tokenizer-0", AttachWorker(1))
    prompts = [ToWorker("tokenizer-0", EncodePrompt(n, 1, TextPrompt("x"))) for n in range(2)]
    sent = list(frames([*retired[:2], opened, *prompts, *retired[2:]]))
    to_tokenizer = [items for (_, identity), items in sent if identity == b"tokenizer-0"]
    to_gpu = [items for (_, identity), items in sent if identity == b"gpu-0"]
    assert to_tokenizer == [[opened], [prompts[0]], [prompts[1]]]
    assert to_gpu == [retired[:MAX_IN_FRAME], retired[MAX_IN_FRAME:]]
