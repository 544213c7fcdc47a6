"""The thread behind a ``Client``: runs a session over sockets."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

from hybridgen.client.address import Address
from hybridgen.client.chunk import StreamChunk
from hybridgen.client.event import Answer, End, Event
from hybridgen.client.limits import ClientLimits
from hybridgen.client.link import Link
from hybridgen.client.peer import COSCHEDULER, Peer
from hybridgen.client.questions import Question
from hybridgen.client.session import Session
from hybridgen.client.sink import Sink
from hybridgen.clock import monotonic_s
from hybridgen.errors import Cancelled, HybridGenError, InternalError, InvalidRequest, PeerGone
from hybridgen.ipc.channel import Poller
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.messages import QueryHealth
from hybridgen.request import Prompt, SamplingParams

_FULL_QUEUE_PAUSE_S = 0.01
_MAX_WAIT_S = 60.0  # poll() takes no infinity
_MAX_FRAMES_IN_A_ROW = 64  # per peer, before the others get their turn


class Pump:
    """Owns the sockets; callers in other threads only touch the session, under its lock.

    Callers ring a doorbell after changing the session. What happened goes to the sinks outside
    the lock, so a sink may be read and closed by anybody at any time.
    """

    def __init__(self, address: Address, limits: ClientLimits) -> None:
        self._address = address
        self._limits = limits
        self._session = Session(limits=limits)
        self._lock = threading.Lock()
        self._sinks: dict[bytes, Sink] = {}
        self._answers: dict[bytes, SimpleQueue[Answer]] = {}
        self._links: dict[Peer, Link] = {}
        self._is_open = True  # the thread runs
        self._is_closed = False
        self._close_lock = threading.Lock()
        self._has_submitted = False
        self._doorbell = Doorbell.create()
        self._poller = Poller()
        self._poller.add(self._doorbell)
        # A daemon, so that a client that was never closed cannot keep its process alive.
        self._thread = threading.Thread(target=self._run, name="hybridgen-client", daemon=True)
        self._thread.start()
        _pumps.add(self)

    # --- for callers in any thread --------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        sink: Sink,
        *,
        timeout_s: float | None,
        priority: int,
        traceparent: str,
    ) -> bytes:
        """Open a request whose events go to ``sink``."""
        with self._changing_session() as session:
            request_id = session.submit(
                prompt, params, timeout_s=timeout_s, priority=priority, traceparent=traceparent
            )
            self._sinks[request_id] = sink
            self._has_submitted = True
        return request_id

    def cancel(self, request_id: bytes) -> None:
        """Ask the server to stop the request."""
        with contextlib.suppress(PeerGone), self._changing_session() as session:
            session.cancel(request_id)

    def abandon(self, request_id: bytes) -> None:
        """Cancel the request and hand out nothing more of it."""
        if self._sinks.pop(request_id, None) is None:
            return  # it has ended
        with contextlib.suppress(PeerGone), self._changing_session() as session:
            session.abandon(request_id)

    def ask(
        self, peer: Peer, make_question: Callable[[bytes], Question], timeout_s: float | None
    ) -> Any:
        """Ask and wait for the answer.

        Raises:
            HybridGenError: the typed error in place of an answer.
        """
        arrived: SimpleQueue[Answer] = SimpleQueue()
        with self._changing_session() as session:
            question = make_question(session.draw_id())
            self._answers[question.request_id] = arrived
            session.ask(peer, question, timeout_s)
        answer = arrived.get()
        if answer.error is not None:
            raise answer.error
        return answer.message

    def close(self) -> None:
        """Cancel what is open, make sure that the server knows, and end the thread."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._is_open:
                self._say_goodbye()
            with self._lock:
                self._is_open = False
                self._doorbell.ring()
            self._thread.join()
            self._doorbell.close()

    def _say_goodbye(self) -> None:
        for request_id in list(self._sinks):
            sink = self._sinks.pop(request_id, None)
            if sink is not None:
                with self._changing_session() as session:
                    session.abandon(request_id)
                sink.end(End(finish_reason="cancelled", error=_closed()))
        if self._has_submitted and self._session.is_connected(COSCHEDULER):
            # Messages of one connection stay in order: once this is answered, the cancels and
            # acknowledgements before it have arrived, and no slot waits for them in vain.
            with contextlib.suppress(HybridGenError):
                self.ask(COSCHEDULER, QueryHealth, self._limits.close_timeout_s)

    def leave_behind(self) -> None:
        """In a forked child: the thread and the connections stayed with the parent."""
        # Whoever held the old ones is not here to let them go.
        self._lock, self._close_lock = threading.Lock(), threading.Lock()
        self._is_open, self._is_closed = False, True
        for sink in self._sinks.values():
            sink.end(End(finish_reason="cancelled", error=_forked()))
        for arrived in self._answers.values():
            arrived.put(Answer(error=_forked()))

    @contextlib.contextmanager
    def _changing_session(self) -> Iterator[Session]:
        with self._lock:
            if not self._is_open:
                raise PeerGone("this client is closed", remedy="Make a new one")
            yield self._session
            self._doorbell.ring()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            timeout_s = 0.0
            while self._is_open:
                ready = self._poller.poll(timeout_s)
                if self._doorbell in ready:
                    self._doorbell.clear()
                with self._lock:
                    for link in self._links.values():
                        if link.dealer in ready:
                            self._receive(link)
                    next_tick_s = self._session.tick()
                    is_stuck = self._send()
                    events = self._session.take_events()
                self._hand_out(events)
                limit_s = _FULL_QUEUE_PAUSE_S if is_stuck else _MAX_WAIT_S
                timeout_s = min(next_tick_s - monotonic_s(), limit_s)
        finally:
            self._shut_down()

    def _receive(self, link: Link) -> None:
        session, peer, dealer = self._session, link.peer, link.dealer
        if link.has_new_connection():
            session.connected(peer)
        for _ in range(_MAX_FRAMES_IN_A_ROW):
            message = dealer.receive()
            if message is None:
                return
            session.received(peer, message)

    def _send(self) -> bool:
        """Send what the session wants sent; whether some of it has to wait."""
        for peer in self._session.take_peers_to_open():
            link = self._links[peer] = Link(peer, self._address)
            self._poller.add(link.dealer)
        for peer, message in self._session.take_outbox():
            self._links[peer].waiting.append(message)
        is_stuck = False
        for link in self._links.values():
            while link.waiting:
                try:
                    link.flush()
                    break
                except InvalidRequest as error:
                    self._session.refuse(link.waiting.popleft().request_id, error)
            is_stuck = is_stuck or bool(link.waiting)
        return is_stuck

    def _hand_out(self, events: list[Event]) -> None:
        sinks = self._sinks
        for request_id, event in events:
            if isinstance(event, StreamChunk):
                sink = sinks.get(request_id)
                if sink is not None:
                    sink.take(event)
            elif isinstance(event, End):
                sink = sinks.pop(request_id, None)
                if sink is not None:
                    sink.end(event)
            else:
                self._answers.pop(request_id).put(event)

    def _shut_down(self) -> None:
        """However the thread ends, nobody waits for it in vain."""
        with self._lock:
            self._is_open = False
            self._session.fail_all(_closed if self._is_closed else _broken)
            events = self._session.take_events()
        self._hand_out(events)
        for link in self._links.values():
            self._poller.remove(link.dealer)
            link.dealer.close()


_pumps: weakref.WeakSet[Pump] = weakref.WeakSet()


def _leave_all_behind() -> None:
    for pump in list(_pumps):
        pump.leave_behind()


os.register_at_fork(after_in_child=_leave_all_behind)


def _forked() -> HybridGenError:
    return PeerGone("the client stayed with the parent process", remedy="Make one after the fork")


def _closed() -> HybridGenError:
    return Cancelled("the client was closed")


def _broken() -> HybridGenError:
    return InternalError("the client's thread has ended", remedy="See its traceback above")
