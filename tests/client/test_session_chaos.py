"""Whatever is lost, repeated or reordered on the way: the golden text, and exactly one end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hybridgen.client.peer import COSCHEDULER, Peer, text_peer
from hybridgen.messages import (
    AckFinished,
    RequestAccepted,
    RequestFinished,
    SubmitRequest,
    SubscribeText,
    TextDeltas,
    TextUnknown,
)
from hybridgen.request import SamplingParams
from tests.support.scripted_server import GoldenText, SessionDriver

SEED = 99
NUM_DETOKENIZERS = 2


class UnreliableServer:
    """Serves one golden text over channels whose content can be lost, repeated, reordered."""

    def __init__(self, golden: GoldenText) -> None:
        self.golden = golden
        self.driver = SessionDriver()
        self.request_id = self.driver.submit(params=SamplingParams())
        self.num_generated = 0
        self.detokenizer = 0
        self.is_acknowledged = False
        self.positions: dict[Peer, int] = {}  # where each detokenizer goes on; unknown: no text
        self.in_flight: dict[Peer, list[Any]] = {COSCHEDULER: []}
        self.history: list[TextDeltas] = []
        for index in range(NUM_DETOKENIZERS):
            self.in_flight[text_peer(index)] = []

    @property
    def owner(self) -> Peer:
        return text_peer(self.detokenizer)

    def serve(self) -> None:
        """Handle everything that the client sent."""
        self.driver.collect()
        sent = list(self.driver.sent)
        self.driver.sent.clear()
        for peer, message in sent:
            match message:
                case SubmitRequest():
                    assert message.params.seed in (None, SEED)
                    self.accept()
                    if self.num_generated == len(self.golden.ids):
                        self.finish()
                case SubscribeText():
                    assert message.char_offset == self.golden.char_offset(message.token_offset)
                    if peer == self.owner:
                        self.positions[peer] = message.token_offset
                    else:
                        self.in_flight[peer].append(TextUnknown(self.request_id))
                case AckFinished():
                    self.is_acknowledged = True

    def accept(self) -> None:
        self.in_flight[COSCHEDULER].append(RequestAccepted(self.request_id, self.detokenizer, SEED))

    def finish(self) -> None:
        self.in_flight[COSCHEDULER].append(
            RequestFinished(
                request_id=self.request_id,
                finish_reason="length",
                num_tokens=len(self.golden.ids),
                num_chars=len(self.golden.text),
            )
        )

    def generate(self, num_tokens: int) -> None:
        was_done = self.num_generated == len(self.golden.ids)
        self.num_generated = min(self.num_generated + num_tokens, len(self.golden.ids))
        if not was_done and self.num_generated == len(self.golden.ids):
            self.finish()

    def push(self, num_tokens: int) -> None:
        start = self.positions.get(self.owner)
        if start is None or start >= self.num_generated:
            return
        stop = min(start + num_tokens, self.num_generated)
        frame = TextDeltas([self.golden.delta(self.request_id, start, stop)])
        self.positions[self.owner] = stop
        self.history.append(frame)
        self.in_flight[self.owner].append(frame)

    def deliver(self, peer: Peer) -> None:
        if self.driver.session.is_connected(peer) and self.in_flight[peer]:
            self.driver.receive(peer, self.in_flight[peer].pop(0))

    def reconnect(self, peer: Peer) -> None:
        """The process behind ``peer`` is replaced: what was on its way is lost."""
        self.in_flight[peer].clear()
        self.positions.pop(peer, None)
        self.driver.connect(peer)

    def move(self) -> None:
        """The text goes over to another detokenizer."""
        self.positions.pop(self.owner, None)
        self.detokenizer = (self.detokenizer + 1) % NUM_DETOKENIZERS
        self.accept()

    def repeat(self, index: int) -> None:
        if self.history:
            self.in_flight[self.owner].append(self.history[index % len(self.history)])

    def reorder(self, peer: Peer, index: int) -> None:
        queue = self.in_flight[peer]
        if len(queue) > 1:
            queue.insert(0, queue.pop(index % len(queue)))

    def lose(self, peer: Peer, index: int) -> None:
        """A frame that arrived damaged and was dropped."""
        queue = self.in_flight[peer]
        if queue:
            queue.pop(index % len(queue))

    def connect_wanted(self) -> None:
        self.driver.collect()
        for peer in self.driver.opened:
            if not self.driver.session.is_connected(peer):
                self.driver.connect(peer)

    def begin(self) -> None:
        """Accepted and subscribed: from here mishaps hurt."""
        self.connect_wanted()
        self.serve()
        self.deliver(COSCHEDULER)
        self.connect_wanted()
        self.serve()

    def step(self, action: str, number: int) -> None:
        actions: dict[str, Callable[[], None]] = {
            "generate": lambda: self.generate(1 + number % 4),
            "push": lambda: self.push(1 + number % 4),
            "deliver": lambda: self.deliver(self.owner),
            "deliver late": lambda: self.deliver(text_peer(number % NUM_DETOKENIZERS)),
            "deliver control": lambda: self.deliver(COSCHEDULER),
            "reconnect": lambda: self.reconnect(self.owner),
            "reconnect control": lambda: self.reconnect(COSCHEDULER),
            "connect": self.connect_wanted,
            "move": self.move,
            "repeat": lambda: self.repeat(number),
            "reorder": lambda: self.reorder(self.owner, number),
            "lose": lambda: self.lose(self.owner, number),
            "lose control": lambda: self.lose(COSCHEDULER, number),
            "reorder control": lambda: self.reorder(COSCHEDULER, number),
            "repeat control": lambda: self.in_flight[COSCHEDULER].extend(
                self.in_flight[COSCHEDULER][:1]
            ),
            "wait": lambda: self.driver.advance(number / 10),
        }
        actions[action]()
        self.serve()

    def heal(self) -> None:
        """From now on everything works: how the request ends."""
        self.generate(len(self.golden.ids))
        for _ in range(400):
            self.connect_wanted()
            self.serve()
            self.push(3)
            for peer, queue in self.in_flight.items():
                while queue and self.driver.session.is_connected(peer):
                    self.deliver(peer)
            if self.is_acknowledged:
                return
            self.finish()  # said again for as long as it is not acknowledged
            self.driver.advance(0.1)


ACTIONS = (
    *("generate", "push", "deliver") * 3,
    *("deliver late", "deliver control", "reconnect", "reconnect control", "connect"),
    *("move", "repeat", "reorder", "lose", "wait"),
    *("repeat control", "reorder control", "lose control"),
)


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(st.text(alphabet="aé語 ", max_size=3), min_size=6, max_size=16),
    script=st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), min_size=30, max_size=80
    ),
    is_cold=st.booleans(),
)
def test_any_mishap_ends_in_the_golden_text_once(
    pieces: list[str], script: list[tuple[str, int]], is_cold: bool
) -> None:
    golden = GoldenText(pieces)
    server = UnreliableServer(golden)
    if not is_cold:
        server.begin()
    for action, number in script:
        server.step(action, number)
    server.heal()
    driver, request_id = server.driver, server.request_id
    [end] = driver.ends[request_id]
    assert end.error is None
    assert end.seed == SEED
    assert driver.ids(request_id) == golden.ids
    assert driver.text(request_id) == golden.text
    assert driver.session.num_open == 0
