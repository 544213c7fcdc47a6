"""The client side of the protocol as a state machine without sockets, threads or time.

Inputs are calls of the owner (``submit``, ``cancel``, ``ask``), what arrives (``received``),
connections (``connected``: the first and every later one) and the passing of time (``tick``).
Outputs are collected and taken by the owner: peers to connect to, messages to send, events.

A stream survives whatever can be replaced on the other side:

- the coscheduler: every open order is sent again on a new connection (repeats attach);
- a detokenizer: text is subscribed again from the offsets that were shown;
- a repeat is cut by its offsets, a gap is never shown but fetched;
- the end is told once, after all the text that the final message counts.

What cannot be mended ends with a typed error after ``ClientLimits.answer_timeout_s``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from hybridgen.client.event import Answer, Event
from hybridgen.client.limits import ClientLimits
from hybridgen.client.open_request import OpenRequest
from hybridgen.client.patience import patience_s, verdict
from hybridgen.client.peer import COSCHEDULER, Peer, PeerState, text_peer
from hybridgen.client.questions import Question, Questions
from hybridgen.clock import Clock, monotonic_s
from hybridgen.errors import HybridGenError
from hybridgen.messages import (
    AckFinished,
    CancelRequest,
    PromptTokenized,
    QueryHealth,
    RequestAccepted,
    RequestFinished,
    SubmitRequest,
    TextDeltas,
    TextUnknown,
)
from hybridgen.request import ID_BYTES, Prompt, SamplingParams


def draw_id() -> bytes:
    """Random bytes that name a request."""
    return os.urandom(ID_BYTES)


class Session:
    """All open requests and questions of one client."""

    def __init__(
        self,
        *,
        clock: Clock = monotonic_s,
        limits: ClientLimits | None = None,
        draw_id: Callable[[], bytes] = draw_id,
    ) -> None:
        self._clock = clock
        self._limits = limits or ClientLimits()
        self.draw_id = draw_id
        self._requests: dict[bytes, OpenRequest] = {}
        self._questions = Questions(self._limits)
        self._peers: dict[Peer, PeerState] = {}
        self._peers_to_open: list[Peer] = []
        self._outbox: list[tuple[Peer, Any]] = []
        self._events: list[Event] = []
        self._probe_at_s = math.inf
        self.next_tick_s = math.inf
        self._state_of(COSCHEDULER)

    # --- outputs --------------------------------------------------------------------------------

    @property
    def num_open(self) -> int:
        """Requests without an end (abandoned ones among them) and questions without an answer."""
        return len(self._requests) + len(self._questions)

    def is_connected(self, peer: Peer) -> bool:
        """Whether ``peer`` was ever reached."""
        state = self._peers.get(peer)
        return state is not None and state.is_connected

    def take_peers_to_open(self) -> list[Peer]:
        """Peers to connect to from now on."""
        peers, self._peers_to_open = self._peers_to_open, []
        return peers

    def take_outbox(self) -> list[tuple[Peer, Any]]:
        """Messages for connected peers, in order."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def take_events(self) -> list[Event]:
        """What happened to requests and questions, in order."""
        events, self._events = self._events, []
        return events

    # --- the owner's wishes ---------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        traceparent: str = "",
    ) -> bytes:
        """Open a request and return its id."""
        now_s = self._clock()
        order = SubmitRequest(
            request_id=self.draw_id(),
            prompt=prompt,
            params=params,
            timeout_s=timeout_s,
            priority=priority,
            traceparent=traceparent,
        )
        request = OpenRequest(order, now_s, self._limits)
        if not self._requests:
            self._probe_at_s = now_s + self._limits.resend_s
        self._requests[order.request_id] = request
        self._send_order(request)
        self._wake_for(request, now_s)
        return order.request_id

    def cancel(self, request_id: bytes) -> None:
        """Ask the server to stop; the request still ends with its text so far and ``End``."""
        request = self._requests.get(request_id)
        if request is None or request.is_cancelled or request.finished is not None:
            return
        request.is_cancelled = True
        self._send(COSCHEDULER, CancelRequest(request_id))

    def abandon(self, request_id: bytes) -> None:
        """Cancel and tell nothing more about the request."""
        request = self._requests.get(request_id)
        if request is None:
            return
        request.is_abandoned = True
        self.cancel(request_id)
        if request.finished is not None or not request.is_sent:
            self._close(request)

    def ask(self, peer: Peer, question: Question, timeout_s: float | None = None) -> None:
        """Send a question; its request id names the ``Answer``."""
        now_s = self._clock()
        is_connected = self._state_of(peer).is_connected
        self._questions.add(peer, question, timeout_s, now_s, is_connected=is_connected)
        if is_connected:
            self._ask_due(peer, now_s)
        self._wake_at(self._questions.next_due_s())

    def refuse(self, request_id: bytes, error: HybridGenError) -> None:
        """The owner could not send an order or a question."""
        request = self._requests.get(request_id)
        if request is not None:
            request.is_sent = False
            self._give_up(request, error)
        elif self._questions.close(request_id):
            self._events.append((request_id, Answer(error=error)))

    def fail_all(self, make_error: Callable[[], HybridGenError]) -> None:
        """End everything with an error (the owner cannot go on)."""
        for request in list(self._requests.values()):
            self._give_up(request, make_error())
        for request_id in self._questions.take_all():
            self._events.append((request_id, Answer(error=make_error())))

    # --- connections ----------------------------------------------------------------------------

    def connected(self, peer: Peer) -> None:
        """A connection to ``peer`` stands: the first one, or one after a break."""
        now_s = self._clock()
        self._state_of(peer).is_connected = True
        if peer == COSCHEDULER:
            for request in self._requests.values():
                self._send_order(request)
        elif peer.kind == "text":
            for request in self._requests.values():
                if request.detokenizer == peer.number:
                    self._subscribe(request, now_s)
        self._ask_due(peer, now_s, is_new_connection=True)

    # --- arrivals -------------------------------------------------------------------------------

    def received(self, peer: Peer, message: Any) -> None:
        """A message from ``peer``."""
        now_s = self._clock()
        self._state_of(peer).heard_s = now_s
        match message:
            case TextDeltas():
                self._take_deltas(message, now_s)
            case TextUnknown():
                self._text_unknown(message, now_s)
            case RequestAccepted():
                self._accepted(message, now_s)
            case RequestFinished():
                self._finished(message, now_s)
            case _:
                self._answered(message)

    def _take_deltas(self, frame: TextDeltas, now_s: float) -> None:
        requests, events = self._requests, self._events
        for delta in frame.deltas:
            request = requests.get(delta.request_id)
            if request is None:
                continue  # a late repeat for a request that has ended
            cursor = request.cursor
            if cursor.is_gap(delta):
                if not request.is_lost:
                    self._subscribe(request, now_s)
                    request.is_lost = True
                continue
            chunk = cursor.take(delta)
            if chunk is None:
                continue
            request.heard_s = now_s
            if request.is_lost:
                request.is_lost = False
                request.pause_s = self._limits.text_retry_s
            if not request.is_abandoned:
                events.append((delta.request_id, chunk))
            if request.finished is not None and request.has_all_text:
                self._end(request, request.finished)

    def _text_unknown(self, message: TextUnknown, now_s: float) -> None:
        request = self._requests.get(message.request_id)
        if request is not None:
            request.is_lost = True
            self._retry_at(request, now_s + request.next_pause_s(self._limits))

    def _accepted(self, message: RequestAccepted, now_s: float) -> None:
        request = self._requests.get(message.request_id)
        if request is None:
            self._send(COSCHEDULER, CancelRequest(message.request_id))
            return
        error = request.fix_seed(message.seed)
        if error is not None:
            self._give_up(request, error)
            return
        request.heard_s = now_s
        if request.detokenizer != message.detokenizer:
            request.detokenizer = message.detokenizer
            self._subscribe(request, now_s)

    def _finished(self, message: RequestFinished, now_s: float) -> None:
        request = self._requests.get(message.request_id)
        if request is None:
            self._acknowledge(message.request_id)  # the first acknowledgement got lost
            return
        if request.finished is not None:
            return
        request.finished = message
        request.heard_s = now_s
        if request.has_all_text or request.is_abandoned:
            self._end(request, message)
            return
        # The rest is most likely on its way from the detokenizer: leave it a moment.
        self._retry_at(request, now_s + self._limits.max_text_retry_s)

    def _answered(self, message: Any) -> None:
        if self._questions.close(message.request_id):
            error = message.error if isinstance(message, PromptTokenized) else None
            answer = Answer(error=error.exception()) if error is not None else Answer(message)
            self._events.append((message.request_id, answer))

    # --- time -----------------------------------------------------------------------------------

    def tick(self) -> float:
        """Do what is due and return when to call again, on the session's clock."""
        now_s = self._clock()
        if now_s < self.next_tick_s:
            return self.next_tick_s
        self.next_tick_s = math.inf
        for request in list(self._requests.values()):
            self._check(request, now_s)
        if self._requests:
            self._probe(now_s)
        for request_id, error in self._questions.take_timed_out(now_s, self.is_connected):
            self._events.append((request_id, Answer(error=error)))
        for peer in self._peers:
            self._ask_due(peer, now_s)
        return self.next_tick_s

    def _check(self, request: OpenRequest, now_s: float) -> None:
        error = verdict(request, self._peers[COSCHEDULER], self._limits, now_s)
        if error is not None:
            self._give_up(request, error)
            return
        if now_s >= request.retry_at_s:
            self._retry(request, now_s)
        self._wake_for(request, now_s)

    def _retry(self, request: OpenRequest, now_s: float) -> None:
        """Ask again for whatever the request waits for."""
        limits = self._limits
        if request.is_cancelled and request.finished is None:
            self._send(COSCHEDULER, CancelRequest(request.request_id))
        if request.lacks_text and now_s - request.ordered_s >= limits.resend_s:
            self._send_order(request)  # the answer says who has its text
        if request.detokenizer is None:
            self._send_order(request)
            self._retry_at(request, now_s + limits.resend_s)
        elif request.finished is not None:
            self._subscribe(request, now_s)
            self._retry_at(request, now_s + request.next_pause_s(limits))
        elif request.is_lost or now_s - request.heard_s >= limits.silence_s:
            self._subscribe(request, now_s)
        else:
            self._retry_at(request, request.heard_s + limits.silence_s)

    def _probe(self, now_s: float) -> None:
        """Find out by a question whether a silent coscheduler is there at all."""
        coscheduler = self._peers[COSCHEDULER]
        due_s = max(coscheduler.heard_s + self._limits.resend_s, self._probe_at_s)
        if now_s >= due_s:
            self._send(COSCHEDULER, QueryHealth(self.draw_id()))
            due_s = self._probe_at_s = now_s + self._limits.resend_s
        self._wake_at(due_s)

    # --- the one way out ------------------------------------------------------------------------

    def _end(self, request: OpenRequest, finished: RequestFinished) -> None:
        """The server ended the request and all its text is there."""
        self._close(request)
        if not request.is_abandoned:
            self._events.append((request.request_id, request.end(finished)))

    def _give_up(self, request: OpenRequest, error: HybridGenError) -> None:
        """The client ends the request; the server is told, if it can be."""
        if request.finished is None and request.is_sent:
            self._send(COSCHEDULER, CancelRequest(request.request_id))
        self._close(request)
        if not request.is_abandoned:
            self._events.append((request.request_id, request.given_up(error)))

    def _close(self, request: OpenRequest) -> None:
        self._requests.pop(request.request_id, None)
        if request.finished is not None:
            self._acknowledge(request.request_id)

    # --- sending --------------------------------------------------------------------------------

    def _state_of(self, peer: Peer) -> PeerState:
        state = self._peers.get(peer)
        if state is None:
            state = self._peers[peer] = PeerState(self._clock())
            self._peers_to_open.append(peer)
        return state

    def _send(self, peer: Peer, message: Any) -> None:
        """Send if the peer was ever reached; otherwise ``connected`` tells it all it must know.

        What is sent while a peer is away waits in the socket, and what is lost with a dying peer
        is made good by ``connected``: repeats are harmless.
        """
        if self._state_of(peer).is_connected:
            self._outbox.append((peer, message))

    def _send_order(self, request: OpenRequest) -> None:
        if not self._state_of(COSCHEDULER).is_connected:
            return
        request.is_sent = True
        request.ordered_s = self._clock()
        if not request.is_abandoned:
            self._outbox.append((COSCHEDULER, request.order))
        if request.is_cancelled:
            self._outbox.append((COSCHEDULER, CancelRequest(request.request_id)))

    def _subscribe(self, request: OpenRequest, now_s: float) -> None:
        if request.detokenizer is None:
            return
        self._send(text_peer(request.detokenizer), request.subscription())
        self._retry_at(request, now_s + self._limits.resend_s)

    def _acknowledge(self, request_id: bytes) -> None:
        self._send(COSCHEDULER, AckFinished(request_id))

    def _ask_due(self, peer: Peer, now_s: float, *, is_new_connection: bool = False) -> None:
        if self._peers[peer].is_connected:
            due = self._questions.due(peer, now_s, is_new_connection=is_new_connection)
            self._outbox.extend((peer, question) for question in due)
        self._wake_at(self._questions.next_due_s())

    def _retry_at(self, request: OpenRequest, at_s: float) -> None:
        request.retry_at_s = at_s
        self._wake_at(at_s)

    def _wake_for(self, request: OpenRequest, now_s: float) -> None:
        patience_ends_s = request.heard_s + patience_s(request, self._limits)
        if patience_ends_s <= now_s:  # the verdict was to go on; look again with the next probe
            patience_ends_s = now_s + self._limits.resend_s
        self._wake_at(min(request.retry_at_s, request.deadline_s, patience_ends_s))

    def _wake_at(self, at_s: float) -> None:
        self.next_tick_s = min(self.next_tick_s, at_s)
