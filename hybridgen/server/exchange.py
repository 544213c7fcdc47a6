"""One request and its answer, as the server under the application sees them."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from hybridgen import trace_context
from hybridgen.server.refusal import Header, Refusal, Reply
from hybridgen.server.traffic import Exchanged
from hybridgen.trace_context import TraceContext

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:=+/@-]{1,128}")
_NOSNIFF: Header = (b"x-content-type-options", b"nosniff")
_ONLY_ONCE = frozenset({b"authorization", b"content-length", b"content-type", b"host"})


class Exchange:
    """Headers in, messages out.

    Args:
        scope, receive, send: of the ASGI call; header names are lower case there.
        traffic: where to count what goes over the connection.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, traffic: Exchanged | None = None
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = bytes(scope.get("query_string", b"")).decode("latin-1")
        self.http_version: str = scope.get("http_version", "1.1")
        self.receive = receive
        self._send = send
        self._raw_headers: list[Header] = [(bytes(k), bytes(v)) for k, v in scope["headers"]]
        self._headers = dict(self._raw_headers)
        self.traffic = traffic or Exchanged()
        self.request_id = _request_id(self._headers.get(b"x-request-id"))
        self.traceparent = _traceparent(self._headers.get(trace_context.HEADER))
        #: Added to the head of the answer, whatever it will be.
        self.extra_headers: list[Header] = []
        self.is_started = False
        self.is_finished = False

    @property
    def is_http2(self) -> bool:
        """Whether other requests share the connection."""
        return not self.http_version.startswith("1")

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, ``name`` in lower case."""
        return self._headers.get(name)

    def check_headers(self, max_bytes: int) -> None:
        """Refuse headers that are too many, or contradict themselves.

        Raises:
            Refusal: 431, or 400 for a repeated header that may stand only once.
        """
        num_bytes = sum(len(name) + len(value) for name, value in self._raw_headers)
        self.traffic.num_bytes += num_bytes
        if num_bytes > max_bytes:
            raise Refusal(
                431,
                "headers_too_large",
                f"The headers take {num_bytes} bytes; limit {max_bytes}. Send fewer.",
            )
        if len(self._headers) == len(self._raw_headers):
            return
        seen: set[bytes] = set()
        for name, _ in self._raw_headers:
            if name in seen and name in _ONLY_ONCE:
                shown = name.decode()
                raise Refusal(
                    400, "repeated_header", f"{shown} is there twice. Send one.", param=shown
                )
            seen.add(name)

    async def reply(self, reply: Reply) -> None:
        """Send a whole answer; one without its body where only the head was asked for."""
        headers = list(reply.headers)
        if reply.status not in {204, 304}:  # there it would be the length of what is not sent
            headers.append((b"content-length", str(len(reply.body)).encode()))
        body = b"" if self.method == "HEAD" else reply.body
        await self.start(reply.status, headers)
        await self.send_body(body, is_last=True)

    async def start(self, status: int, headers: list[Header]) -> None:
        """Send status and headers."""
        self.is_started = True
        own = [*self.extra_headers, (b"x-request-id", self.request_id), _NOSNIFF]
        if self.traceparent:
            own.append((trace_context.HEADER, self.traceparent.encode()))
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *own],
            }
        )

    async def send_body(self, body: bytes, *, is_last: bool = False) -> None:
        """Send a piece of the body; waits while the client does not read."""
        self.is_finished = is_last
        self.traffic.num_bytes += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})


def _traceparent(given: bytes | None) -> str:
    """The client's W3C trace context, or nothing; a malformed one counts as none."""
    context = None if given is None else TraceContext.parse(given.decode("latin-1").strip())
    return "" if context is None else str(context)


def _request_id(given: bytes | None) -> bytes:
    """What the client calls the request if that can safely be echoed and logged, else our own."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return b"req-" + os.urandom(12).hex().encode()
