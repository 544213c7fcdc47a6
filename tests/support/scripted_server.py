"""The other side of a client session, as plain objects: for tests that script every arrival."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from hybridgen.client.chunk import StreamChunk
from hybridgen.client.event import Answer, End
from hybridgen.client.limits import ClientLimits
from hybridgen.client.peer import COSCHEDULER, Peer
from hybridgen.client.session import Session
from hybridgen.messages import SubscribeText, TextDelta, TextDeltas
from hybridgen.request import Prompt, SamplingParams, TextPrompt
from tests.support.fake_clock import FakeClock


class GoldenText:
    """A finished text: token i is ``ids[i]`` and shows as ``pieces[i]``."""

    def __init__(self, pieces: list[str], first_id: int = 100) -> None:
        self.pieces = pieces
        self.ids = list(range(first_id, first_id + len(pieces)))
        self.text = "".join(pieces)

    def char_offset(self, num_tokens: int) -> int:
        """Characters of the first ``num_tokens`` tokens."""
        return sum(len(piece) for piece in self.pieces[:num_tokens])

    def delta(self, request_id: bytes, start: int, stop: int) -> TextDelta:
        """Tokens ``start`` … ``stop`` - 1 as a detokenizer sends them."""
        return TextDelta(
            request_id,
            start,
            self.char_offset(start),
            "".join(self.pieces[start:stop]),
            self.ids[start:stop],
        )

    def deltas(self, request_id: bytes, *cuts: int) -> list[TextDeltas]:
        """One frame per pair of neighbouring ``cuts``."""
        pairs = itertools.pairwise(cuts)
        return [TextDeltas([self.delta(request_id, a, b)]) for a, b in pairs]


class SessionDriver:
    """A session with a clock that is moved by hand, and what it put out so far."""

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self.clock = FakeClock()
        counter = iter(range(1, 10_000))
        self.session = Session(
            clock=self.clock,
            limits=limits,
            draw_id=lambda: next(counter).to_bytes(16, "big"),
        )
        self.opened: list[Peer] = []
        self.sent: deque[tuple[Peer, Any]] = deque()
        self.chunks: dict[bytes, list[StreamChunk]] = {}
        self.ends: dict[bytes, list[End]] = {}
        self.answers: dict[bytes, list[Answer]] = {}
        self.collect()

    def collect(self) -> None:
        """Take all outputs of the session."""
        self.opened += self.session.take_peers_to_open()
        self.sent.extend(self.session.take_outbox())
        for request_id, event in self.session.take_events():
            if isinstance(event, StreamChunk):
                assert request_id not in self.ends, "text after the end"
                self.chunks.setdefault(request_id, []).append(event)
            elif isinstance(event, End):
                self.ends.setdefault(request_id, []).append(event)
            else:
                self.answers.setdefault(request_id, []).append(event)

    def take_sent(self, peer: Peer | None = None) -> list[Any]:
        """Messages sent since the last call (to ``peer`` only, the others are dropped)."""
        self.collect()
        messages = [message for to, message in self.sent if peer is None or to == peer]
        self.sent.clear()
        return messages

    def connect(self, *peers: Peer) -> None:
        """Connections to ``peers`` stand now."""
        for peer in peers:
            self.session.connected(peer)
        self.collect()

    def receive(self, peer: Peer, *messages: Any) -> None:
        """``messages`` arrive from ``peer``."""
        for message in messages:
            self.session.received(peer, message)
        self.collect()

    def advance(self, seconds: float) -> None:
        """Let time pass as a pump would: a tick whenever one is due."""
        end_s = self.clock.now_s + seconds
        while self.session.next_tick_s <= end_s:
            self.clock.now_s = max(self.clock.now_s, self.session.next_tick_s)
            self.session.tick()
        self.clock.now_s = end_s
        self.session.tick()
        self.collect()

    def submit(self, prompt: Prompt | None = None, **options: Any) -> bytes:
        """Open a request."""
        params = options.pop("params", SamplingParams(seed=7))
        request_id = self.session.submit(prompt or TextPrompt("hello"), params, **options)
        self.collect()
        return request_id

    def text(self, request_id: bytes) -> str:
        """Text shown so far."""
        return "".join(chunk.text for chunk in self.chunks.get(request_id, []))

    def ids(self, request_id: bytes) -> list[int]:
        """Ids shown so far."""
        return [i for chunk in self.chunks.get(request_id, []) for i in chunk.token_ids]

    def subscriptions(self, peer: Peer) -> list[tuple[int, int]]:
        """Offsets of the subscriptions sent to ``peer`` since the last call."""
        return [
            (message.token_offset, message.char_offset)
            for message in self.take_sent(peer)
            if isinstance(message, SubscribeText)
        ]


def connected_driver(limits: ClientLimits | None = None) -> SessionDriver:
    """A session whose coscheduler is there."""
    driver = SessionDriver(limits)
    driver.connect(COSCHEDULER)
    return driver
