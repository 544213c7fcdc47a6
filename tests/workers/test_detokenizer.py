"""From generated ids to each client's socket: nothing lost, nothing twice, one report."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zmq

from hybridgen.formats.mock_model import token_bytes
from hybridgen.ipc import channel
from hybridgen.ipc.channel import Router, SendResult
from hybridgen.ipc.slot_table import Finish, RowError, SlotState, SlotWord, pack_finish
from hybridgen.messages import (
    AttachWorker,
    CloseText,
    DrainWorker,
    Message,
    OpenText,
    ReaderLost,
    SlotEvent,
    SubscribeText,
    TextDeltas,
    TextFinished,
    TextUnknown,
    WorkerAttached,
    WorkerReady,
)
from hybridgen.request import FinishReason, SamplingParams, TokenLogprob
from hybridgen.workers import detokenizer
from hybridgen.workers.detokenizer import Detokenizer, load_vocabulary, prepare, run
from tests.support.eventually import eventually
from tests.support.fake_clock import FakeClock
from tests.workers.workplace import LOGPROB_DEPTH, FactSocket, Workplace, request_id

ALICE, BOB = b"client-alice-000", b"client-bob-00000"
PARAMS = SamplingParams()
LIMIT_S = 30.0


class Reader:
    """A client's text socket and what came over it."""

    def __init__(self, place: Workplace, client_id: bytes, high_water: int = 1000) -> None:
        self._socket = place.reader(client_id, high_water=high_water)
        self.frames: list[Any] = []
        self.ids: dict[bytes, list[int]] = {}
        self.texts: dict[bytes, str] = {}
        self.logprobs: dict[bytes, list[TokenLogprob]] = {}

    def subscribe(self, request: bytes, token_offset: int = 0, char_offset: int = 0) -> None:
        self._socket.send(SubscribeText(request, token_offset, char_offset))

    def leave(self) -> None:
        self._socket.close()

    def send_raw(self, frame: bytes) -> None:
        self._socket.sockets[0].send(frame, zmq.NOBLOCK)

    def read(self) -> Reader:
        """Take everything that arrived; each delta must begin where the last one ended."""
        while (frame := self._socket.receive()) is not None:
            self.frames.append(frame)
            for delta in frame.deltas if isinstance(frame, TextDeltas) else ():
                ids = self.ids.setdefault(delta.request_id, [])
                text = self.texts.setdefault(delta.request_id, "")
                assert (delta.token_offset, delta.char_offset) == (len(ids), len(text))
                ids += delta.token_ids
                self.texts[delta.request_id] = text + delta.text
                self.logprobs.setdefault(delta.request_id, []).extend(delta.logprobs or [])
        return self


class GatedRouter(Router):
    """Says that a client's queue is full for as long as the test wants."""

    shut: ClassVar[set[bytes]] = set()

    def send(self, identity: bytes, message: Message) -> SendResult:
        return SendResult.BLOCKED if identity in self.shut else super().send(identity, message)


class Desk:
    """A detokenizer, its coscheduler and its clock."""

    def __init__(self, place: Workplace, incarnation: int = 1) -> None:
        self.place = place
        self.clock = FakeClock()
        self.coscheduler: FactSocket = place.open_coscheduler()
        self.incarnation = incarnation
        self.detokenizer = self._start()

    def _start(self) -> Detokenizer:
        context = self.place.context("detokenizer-0", incarnation=self.incarnation)
        vocabulary = load_vocabulary("mock", context.spec.config)
        worker = Detokenizer(context, vocabulary, self.clock)
        self.place.adopt(worker)
        worker.introduce()
        self.coscheduler.wait_for(WorkerAttached, self.incarnation)
        return worker

    def replace(self) -> None:
        """Kill the detokenizer and start another."""
        self.detokenizer.close()
        self.incarnation += 1
        self.detokenizer = self._start()

    def wait_for_mail(self) -> None:
        """Until both an order and a subscription wait to be read in the next turn."""
        for mailbox in (self.detokenizer._coscheduler, self.detokenizer._clients):
            assert mailbox.sockets[0].poll(5000)

    def turn_until(self, predicate: Any) -> None:
        def turned() -> object:
            self.detokenizer.turn()
            return predicate()

        eventually(turned, 5.0)

    def open(self, slot: int, epoch: int) -> bytes:
        """Open a text that is in its slot, and see that it is; its request."""
        self.coscheduler.send("detokenizer-0", OpenText(slot, epoch))

        def is_open() -> bool:
            text = self.detokenizer._by_slot.get(slot)
            return text is not None and text.epoch == epoch

        self.turn_until(is_open)
        return self.place.slots.request_id(slot)

    def finished(self) -> list[TextFinished]:
        return self.coscheduler.of(TextFinished)

    def counters(self) -> dict[str, int]:
        return self.place.snapshot("detokenizer-0").counters

    def generate(self, slot: int, ids: list[int]) -> None:
        self.place.generate(slot, ids)
        self.place.bells["detokenizer-0"].ring()

    def end(self, slot: int, reason: FinishReason = FinishReason.LENGTH) -> None:
        generated = self.place.slots.load(slot, SlotWord.GENERATED)
        word = pack_finish(Finish(reason, RowError.OK, generated))
        self.place.slots.store(slot, SlotWord.FINISH, word)
        self.place.bells["detokenizer-0"].ring()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns come back at once, also when nothing has arrived yet."""
    monkeypatch.setattr(detokenizer, "IDLE_WAIT_S", 0.002)
    monkeypatch.setattr(detokenizer, "RETRY_WAIT_S", 0.001)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[bytes]]:
    """Clients whose queue is full."""
    monkeypatch.setattr(detokenizer, "Router", GatedRouter)
    yield GatedRouter.shut
    GatedRouter.shut.clear()


def test_all_new_text_of_a_client_comes_in_one_frame(workplace: Workplace) -> None:
    desk, alice, bob = Desk(workplace), Reader(workplace, ALICE), Reader(workplace, BOB)
    requests = []
    for slot, client in ((0, ALICE), (1, ALICE), (2, BOB)):
        epoch = workplace.fill_slot(slot, PARAMS, [1], client_id=client)
        requests.append(desk.open(slot, epoch))
        (alice if client == ALICE else bob).subscribe(requests[-1])
    for slot in (0, 1, 2):
        workplace.generate(slot, [65])
    desk.turn_until(lambda: len(alice.read().ids) == 2 and bob.read().ids)
    alice.frames.clear()
    for slot in (0, 1, 2):
        workplace.generate(slot, [66, 67])
    desk.turn_until(lambda: alice.read().frames and bob.read().texts[requests[2]] == "ABC")
    assert [len(frame.deltas) for frame in alice.frames] == [2]
    assert alice.texts == {requests[0]: "ABC", requests[1]: "ABC"}
    assert bob.texts == {requests[2]: "ABC"}
    assert desk.counters()["tokens"] == 9


def test_reports_a_delivered_text_once_and_again_only_when_asked(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    desk.generate(0, [65, 66])
    desk.end(0)
    for _ in range(3):
        desk.detokenizer.turn()
    assert desk.finished() == []
    alice.subscribe(request)
    desk.turn_until(desk.finished)
    for _ in range(3):
        desk.detokenizer.turn()
    (report,) = desk.finished()
    assert (report.slot, report.epoch) == (0, epoch)
    assert (report.num_tokens, report.num_chars) == (2, 2)
    assert report.finish_reason == FinishReason.LENGTH
    desk.open(0, epoch)
    desk.turn_until(lambda: len(desk.finished()) == 2)
    assert desk.finished() == [report, report]
    assert alice.read().texts == {request: "AB"}


def test_a_request_that_is_not_here_is_unknown(workplace: Workplace) -> None:
    desk, alice, bob = Desk(workplace), Reader(workplace, ALICE), Reader(workplace, BOB)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    desk.generate(0, [65])
    desk.detokenizer.turn()
    bob.subscribe(request)  # it is Alice's
    alice.subscribe(request_id(3, 3))
    desk.turn_until(lambda: bob.read().frames and alice.read().frames)
    assert bob.frames == [TextUnknown(request)]
    assert alice.frames == [TextUnknown(request_id(3, 3))]


def test_two_clients_may_choose_the_same_request_id(workplace: Workplace) -> None:
    desk, readers = Desk(workplace), [Reader(workplace, ALICE), Reader(workplace, BOB)]
    request = b"the-same-request"
    for slot, client in ((0, ALICE), (1, BOB)):
        epoch = workplace.fill_slot(slot, PARAMS, [1], client_id=client)
        workplace.slots.set_ids(slot, client, request)
        desk.open(slot, epoch)
        desk.generate(slot, [65 + slot])
    for reader in readers:
        reader.subscribe(request)
    desk.turn_until(lambda: all(reader.read().ids for reader in readers))
    assert [reader.texts for reader in readers] == [{request: "A"}, {request: "B"}]


def test_a_stale_order_changes_nothing(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    old = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    desk.coscheduler.send("detokenizer-0", OpenText(0, old), CloseText(0, old))
    desk.generate(0, [65])
    desk.turn_until(lambda: alice.read().texts)
    desk.generate(0, [66])
    desk.turn_until(lambda: alice.read().texts[request] == "AB")
    assert desk.finished() == []


def test_a_new_occupant_takes_the_slot_over(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    old = desk.open(0, workplace.fill_slot(0, PARAMS, [1], client_id=ALICE))
    desk.detokenizer.turn()
    new = desk.open(0, workplace.fill_slot(0, PARAMS, [1], client_id=ALICE))
    desk.generate(0, [65])
    alice.subscribe(old)
    alice.subscribe(new)
    desk.turn_until(lambda: alice.read().ids and len(alice.frames) >= 2)
    assert TextUnknown(old) in alice.frames
    assert alice.texts == {new: "A"}


def test_a_text_opened_before_its_prompt_is_encoded(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    desk.detokenizer.turn()
    workplace.tokens.write(0, 0, [1, 2, 3])
    workplace.slots.store(0, SlotWord.PROMPT_LEN, 3)
    desk.generate(0, [65])
    desk.turn_until(lambda: alice.read().ids)
    assert alice.ids == {request: [65]}
    assert alice.texts == {request: "A"}


def test_a_replacement_sends_exactly_the_rest(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, SamplingParams(logprobs=1), [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)

    def generate(ids: list[int]) -> None:
        for index, token_id in enumerate(ids, workplace.slots.load(0, SlotWord.GENERATED)):
            workplace.logprobs.write(0, index, TokenLogprob(token_id, -1.0))
        desk.generate(0, ids)

    first = [65, 66] * (LOGPROB_DEPTH // 4)
    for num_frames in (1, 2, 3):  # more records than are kept
        generate(first)
        desk.turn_until(lambda n=num_frames: len(alice.read().ids.get(request, [])) == n * 32)
    desk.replace()
    desk.coscheduler.send("detokenizer-0", OpenText(0, epoch))
    alice.subscribe(request, 96, 96)
    desk.wait_for_mail()
    desk.detokenizer.turn()
    generate([67, 68])
    desk.end(0)
    desk.turn_until(desk.finished)
    eventually(lambda: len(alice.read().ids[request]) == 98, 5.0)
    assert alice.ids[request] == first * 3 + [67, 68]
    assert alice.texts[request] == "AB" * 48 + "CD"
    assert [record.token_id for record in alice.logprobs[request]] == alice.ids[request]
    assert desk.counters()["tokens"] == 98


def test_a_full_queue_loses_nothing_and_holds_up_nobody_else(
    workplace: Workplace, gate: set[bytes]
) -> None:
    desk, alice, bob = Desk(workplace), Reader(workplace, ALICE), Reader(workplace, BOB)
    requests = {}
    for slot, client, reader in ((0, ALICE, alice), (1, BOB, bob)):
        epoch = workplace.fill_slot(slot, PARAMS, [1], client_id=client)
        requests[client] = desk.open(slot, epoch)
        reader.subscribe(requests[client])
        desk.generate(slot, [65])
    desk.turn_until(lambda: alice.read().ids and bob.read().ids)
    gate.add(ALICE)
    for token_id in range(66, 80):
        desk.generate(0, [token_id])
        desk.generate(1, [token_id])
        desk.detokenizer.turn()
    desk.end(0)
    desk.end(1)
    desk.turn_until(desk.finished)
    assert [report.slot for report in desk.finished()] == [1]
    assert desk.counters()["blocked_sends"] > 0
    gate.clear()
    desk.turn_until(lambda: len(desk.finished()) == 2)
    whole = bytes(range(65, 80)).decode()
    eventually(lambda: alice.read().texts[requests[ALICE]] == whole, 5.0)
    assert bob.read().texts[requests[BOB]] == whole


def test_a_reader_with_tiny_buffers_gets_everything(
    tmp_path: Path, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detokenizer, "Router", partial(channel.Router, high_water=1))
    num_tokens = 20_000
    with Workplace(tmp_path / "wide", workplace.config, max_model_len=num_tokens + 1) as place:
        desk, alice = Desk(place), Reader(place, ALICE, high_water=1)
        epoch = place.fill_slot(0, PARAMS, [1], client_id=ALICE, max_tokens=num_tokens)
        request = desk.open(0, epoch)
        alice.subscribe(request)
        desk.turn_until(lambda: not alice.read().frames)
        word = token_bytes().index(b" people")
        while place.slots.load(0, SlotWord.GENERATED) < num_tokens:
            desk.generate(0, [word] * 500)
            desk.detokenizer.turn()
        assert desk.counters()["blocked_sends"] > 0
        desk.end(0)
        desk.turn_until(lambda: alice.read() and desk.finished())
        eventually(lambda: len(alice.read().ids[request]) == num_tokens, 5.0)
        assert alice.texts[request] == " people" * num_tokens


def test_a_reader_who_does_not_read_is_lost_after_the_limit(
    workplace: Workplace, gate: set[bytes]
) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    desk.generate(0, [65])
    desk.turn_until(lambda: alice.read().ids)
    gate.add(ALICE)
    desk.generate(0, [66])
    desk.detokenizer.turn()
    desk.clock.advance(LIMIT_S)
    desk.detokenizer.turn()
    assert desk.coscheduler.of(ReaderLost) == []
    desk.clock.advance(0.1)
    desk.turn_until(desk.finished)
    (lost,) = desk.coscheduler.of(ReaderLost)
    assert (lost.slot, lost.epoch, lost.error.code) == (0, epoch, "slow_reader")
    assert [kind for kind in map(type, desk.coscheduler.facts) if kind is not WorkerAttached] == [
        ReaderLost,
        TextFinished,
    ]


def test_a_reader_who_never_comes_is_lost_after_the_limit(workplace: Workplace) -> None:
    desk = Desk(workplace)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    desk.open(0, epoch)
    desk.generate(0, [65])
    desk.turn_until(lambda: desk.counters()["tokens"])
    desk.clock.advance(LIMIT_S + 0.1)
    desk.turn_until(lambda: desk.coscheduler.of(ReaderLost))


def test_a_long_wait_for_the_first_token_is_not_the_readers_fault(
    workplace: Workplace, gate: set[bytes]
) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    desk.turn_until(lambda: not alice.read().frames)
    desk.clock.advance(10 * LIMIT_S)
    gate.add(ALICE)
    desk.generate(0, [65])
    desk.turn_until(lambda: desk.counters()["blocked_sends"])
    assert desk.coscheduler.of(ReaderLost) == []
    gate.clear()
    desk.turn_until(lambda: alice.read().ids)


def test_a_reader_who_leaves_and_comes_back_goes_on_where_it_was(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    desk.generate(0, [65])
    desk.turn_until(lambda: alice.read().ids)
    alice.leave()

    def is_missed() -> bool:
        num_frames = desk.counters()["frames"]
        desk.generate(0, [66])
        desk.detokenizer.turn()
        return desk.counters()["frames"] == num_frames

    eventually(is_missed, 5.0)
    returned = Reader(workplace, ALICE)
    returned.ids, returned.texts = alice.ids, alice.texts
    returned.subscribe(request_id(7, 7))
    desk.turn_until(lambda: returned.read().frames)
    desk.generate(0, [66])
    desk.detokenizer.turn()
    assert returned.read().frames == [TextUnknown(request_id(7, 7))]  # it has not said where it is
    returned.subscribe(request, 1, 1)
    desk.end(0)
    desk.turn_until(desk.finished)
    total = workplace.slots.load(0, SlotWord.GENERATED)
    eventually(lambda: len(returned.read().ids[request]) == total, 5.0)
    assert returned.texts[request] == "A" + "B" * (total - 1)


def test_closing_flushes_at_once_and_keeps_the_rest_for_its_reader(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    desk.generate(0, [65, 66])
    desk.coscheduler.send("detokenizer-0", CloseText(0, epoch))
    desk.turn_until(desk.finished)
    (report,) = desk.finished()
    assert (report.num_tokens, report.finish_reason) == (2, FinishReason.CANCELLED)
    alice.subscribe(request)
    desk.turn_until(lambda: alice.read().texts)
    assert alice.texts == {request: "AB"}
    assert len(desk.finished()) == 1


def test_closing_does_not_lose_text_that_a_full_queue_holds_up(
    workplace: Workplace, gate: set[bytes]
) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    desk.generate(0, [65])
    desk.turn_until(lambda: alice.read().ids)
    gate.add(ALICE)
    desk.generate(0, [66])
    desk.coscheduler.send("detokenizer-0", CloseText(0, epoch))
    desk.turn_until(desk.finished)
    gate.clear()
    desk.turn_until(lambda: alice.read().texts[request] == "AB")
    assert len(desk.finished()) == 1


def test_a_reported_text_is_not_read_from_a_slot_that_went_on(
    workplace: Workplace, gate: set[bytes]
) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    desk.generate(0, [65])
    desk.turn_until(lambda: alice.read().ids)
    gate.add(ALICE)
    desk.generate(0, [66])
    desk.coscheduler.send("detokenizer-0", CloseText(0, epoch))
    desk.turn_until(desk.finished)
    workplace.fill_slot(0, PARAMS, [1], client_id=BOB)
    workplace.generate(0, [88, 88])
    gate.clear()
    desk.detokenizer.turn()
    alice.subscribe(request)
    desk.turn_until(lambda: TextUnknown(request) in alice.read().frames)
    assert alice.ids == {request: [65]}


def test_a_freed_slots_text_is_unknown(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    request = desk.open(0, epoch)
    desk.coscheduler.send("detokenizer-0", CloseText(0, epoch))
    desk.turn_until(desk.finished)
    workplace.slots.store(0, SlotWord.STATE, SlotState.FREE)
    alice.subscribe(request)
    desk.turn_until(lambda: alice.read().frames)
    assert alice.frames == [TextUnknown(request)]


def test_a_stop_string_is_written_into_the_slot(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    there = token_bytes().index(b" there")
    epoch = workplace.fill_slot(0, SamplingParams(stop=("he",)), [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    desk.generate(0, [65, there, 66])
    desk.turn_until(desk.finished)
    eventually(lambda: alice.read().texts, 5.0)
    assert alice.texts == {request: "A t"}
    assert workplace.slots.load(0, SlotWord.STOP) == 1 + 2
    assert desk.finished()[0].finish_reason == FinishReason.STOP_STRING


def test_overwritten_log_probabilities_end_the_request(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    epoch = workplace.fill_slot(0, SamplingParams(logprobs=1), [1], client_id=ALICE)
    request = desk.open(0, epoch)
    alice.subscribe(request)
    workplace.logprobs.write(0, 64, TokenLogprob(65, -1.0))
    desk.generate(0, [65] * 65)
    desk.turn_until(desk.finished)
    (lost,) = desk.coscheduler.of(ReaderLost)
    assert lost.error.code == "internal_error"
    assert len(desk.finished()) == 1


@pytest.mark.parametrize("damage", ["id", "count", "finish"])
def test_damaged_words_end_their_request_and_no_other(workplace: Workplace, damage: str) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    requests = []
    for slot in range(2):
        epoch = workplace.fill_slot(slot, PARAMS, [1], client_id=ALICE)
        requests.append(desk.open(slot, epoch))
        alice.subscribe(requests[slot])
    if damage == "id":
        desk.generate(0, [65, 2**31 - 1])
    else:
        word = SlotWord.GENERATED if damage == "count" else SlotWord.FINISH
        workplace.slots.store(0, word, 2**63 + 99)
    desk.generate(1, [66, 67])
    desk.turn_until(lambda: alice.read().ids.get(requests[1]) == [66, 67])
    desk.turn_until(desk.finished)
    (lost,) = desk.coscheduler.of(ReaderLost)
    assert lost.slot == 0
    assert lost.error.code in {"ipc_error", "internal_error"}
    assert [finished.slot for finished in desk.finished()] == [0]
    assert not alice.ids.get(requests[0])


def test_damaged_parameters_end_their_request(workplace: Workplace) -> None:
    desk = Desk(workplace)
    epoch = workplace.fill_slot(0, PARAMS, [1], client_id=ALICE)
    workplace.slots.parameters(0)[:256] = b"\xff" * 256
    desk.coscheduler.send("detokenizer-0", OpenText(0, epoch))
    desk.turn_until(desk.finished)
    assert len(desk.coscheduler.of(ReaderLost)) == 1


def test_a_new_coscheduler_learns_which_texts_are_open(workplace: Workplace) -> None:
    desk = Desk(workplace)
    epoch = workplace.fill_slot(3, PARAMS, [1], client_id=ALICE)
    desk.open(3, epoch)
    desk.coscheduler.send("detokenizer-0", AttachWorker(2))
    desk.turn_until(lambda: len(desk.coscheduler.of(WorkerAttached)) == 2)
    attached = desk.coscheduler.of(WorkerAttached)[1]
    assert attached.answers == 2
    assert attached.open_slots == [SlotEvent(3, epoch)]


def test_malformed_frames_are_counted(workplace: Workplace) -> None:
    desk, alice = Desk(workplace), Reader(workplace, ALICE)
    for frame in (b"", b"\xc1", b"\x81\xa4type\xaaNoSuchType"):
        alice.send_raw(frame)
    desk.turn_until(lambda: desk.counters()["corrupt_frames"] == 3)
    assert alice.read().frames == []


def test_runs_until_it_is_told_to_exit(workplace: Workplace) -> None:
    context = workplace.context("detokenizer-0")
    workplace.order("detokenizer-0", DrainWorker())
    assert run(context.spec, context.control) == 0
    assert [type(fact) for fact in workplace.facts("detokenizer-0")] == [WorkerReady]


def test_one_that_waited_needs_no_model(workplace: Workplace, monkeypatch: Any) -> None:
    context = workplace.context("detokenizer-0")
    work = prepare("mock", context.spec.config)
    monkeypatch.setattr(detokenizer, "inspect_model", None)  # it was read ahead
    workplace.order("detokenizer-0", DrainWorker())
    assert work(context.spec, context.control) == 0
