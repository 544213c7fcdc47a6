"""What an ``AsyncClient`` runs on its event loop: a session over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from hybridgen.client.address import Address
from hybridgen.client.async_link import AsyncLink
from hybridgen.client.chunk import StreamChunk
from hybridgen.client.event import Answer, End
from hybridgen.client.limits import ClientLimits
from hybridgen.client.peer import COSCHEDULER, Peer
from hybridgen.client.questions import Question
from hybridgen.client.session import Session
from hybridgen.client.sink import Sink
from hybridgen.clock import monotonic_s
from hybridgen.errors import Cancelled, HybridGenError, InternalError, InvalidRequest, PeerGone
from hybridgen.messages import QueryHealth
from hybridgen.request import Prompt, SamplingParams


class AsyncPump:
    """Owns the links; make it, use it and close it on one running loop."""

    def __init__(self, address: Address, limits: ClientLimits) -> None:
        self._address = address
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._session = Session(limits=limits)
        self._sinks: dict[bytes, Sink] = {}
        self._answers: dict[bytes, asyncio.Future[Answer]] = {}
        self._links: dict[Peer, AsyncLink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf
        self._is_open = True  # its tasks run
        self._is_closed = False
        self._has_submitted = False
        self._advance()

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
        self._check_open()
        request_id = self._session.submit(
            prompt, params, timeout_s=timeout_s, priority=priority, traceparent=traceparent
        )
        self._sinks[request_id] = sink
        self._has_submitted = True
        self._advance()
        return request_id

    def cancel(self, request_id: bytes) -> None:
        """Ask the server to stop the request."""
        if self._is_open:
            self._session.cancel(request_id)
            self._advance()

    def abandon(self, request_id: bytes) -> None:
        """Cancel the request and hand out nothing more of it."""
        if self._sinks.pop(request_id, None) is not None and self._is_open:
            self._session.abandon(request_id)
            self._advance()

    async def ask(
        self, peer: Peer, make_question: Callable[[bytes], Question], timeout_s: float | None
    ) -> Any:
        """Ask and wait for the answer.

        Raises:
            HybridGenError: the typed error in place of an answer.
        """
        self._check_open()
        question = make_question(self._session.draw_id())
        arrived: asyncio.Future[Answer] = self._loop.create_future()
        self._answers[question.request_id] = arrived
        self._session.ask(peer, question, timeout_s)
        self._advance()
        try:
            answer = await arrived
        finally:
            self._answers.pop(question.request_id, None)
        if answer.error is not None:
            raise answer.error
        return answer.message

    async def close(self) -> None:
        """Cancel what is open, make sure that the server knows, and disconnect."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_open:
            await self._say_goodbye()
            self._fail(_closed)
        for link in self._links.values():
            link.close()

    async def _say_goodbye(self) -> None:
        for request_id, sink in list(self._sinks.items()):
            self.abandon(request_id)
            sink.end(End(finish_reason="cancelled", error=_closed()))
        if self._has_submitted and self._session.is_connected(COSCHEDULER):
            # Messages of one connection stay in order: once this is answered, the cancels and
            # acknowledgements before it have arrived, and no slot waits for them in vain.
            with contextlib.suppress(HybridGenError):
                await self.ask(COSCHEDULER, QueryHealth, self._limits.close_timeout_s)

    def _check_open(self) -> None:
        if not self._is_open:
            raise PeerGone("this client is closed", remedy="Make a new one")

    # --- what the links tell --------------------------------------------------------------------

    def _connected(self, peer: Peer) -> None:
        self._session.connected(peer)
        self._advance()

    def _received(self, peer: Peer, message: Any) -> None:
        self._session.received(peer, message)
        self._advance()

    def _refused(self, message: Any, error: InvalidRequest) -> None:
        self._session.refuse(message.request_id, error)
        self._advance()

    def _broken(self, error: BaseException) -> None:
        """A task failed: nobody waits for it in vain, and the loop's handler reports it."""
        if self._is_open:
            self._fail(partial(InternalError, f"the client's task has failed: {error!r}"))
        self._loop.call_exception_handler(
            {"message": "a task of an AsyncClient failed", "exception": error}
        )

    def _fail(self, make_error: Callable[[], HybridGenError]) -> None:
        self._session.fail_all(make_error)
        self._advance()
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()

    # --- moving on ------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Bring out what the session put out since the last call."""
        session = self._session
        for peer in session.take_peers_to_open():
            self._links[peer] = AsyncLink(
                peer,
                self._address,
                on_connect=self._connected,
                on_message=self._received,
                on_refused=self._refused,
                on_broken=self._broken,
            )
        for peer, message in session.take_outbox():
            self._links[peer].send(message)
        for request_id, event in session.take_events():
            if isinstance(event, StreamChunk):
                sink = self._sinks.get(request_id)
                if sink is not None:
                    sink.take(event)
            elif isinstance(event, End):
                sink = self._sinks.pop(request_id, None)
                if sink is not None:
                    sink.end(event)
            else:
                arrived = self._answers.get(request_id)
                if arrived is not None and not arrived.done():
                    arrived.set_result(event)
        if session.next_tick_s < self._timer_at_s:
            self._set_timer(session.next_tick_s)

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self._loop.call_later(max(0.0, at_s - monotonic_s()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at_s = math.inf
        self._session.tick()
        self._advance()


def _closed() -> HybridGenError:
    return Cancelled("the client was closed")
