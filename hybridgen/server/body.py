"""Request bodies: whole, within their limits, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hybridgen.server.exchange import Exchange
from hybridgen.server.limits import ServerLimits
from hybridgen.server.refusal import ClientGone, Refusal
from hybridgen.server.time_limit import TimeLimit

_MAX_LENGTH_DIGITS = 18
_UTF8_NAMES = (b"utf-8", b"utf8", b'"utf-8"', b'"utf8"')


class BodyBudget:
    """Memory for the bodies of all requests together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """A share that grows with one body and is given back at the end."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.num_bytes -= share.num_bytes

    def take(self, num_bytes: int) -> None:
        """Count bytes that have arrived.

        Raises:
            Refusal: 503; the bodies in memory are too many for one more.
        """
        if self.num_bytes + num_bytes > self._max_bytes:
            raise Refusal(
                503,
                "too_many_bodies",
                f"The requests being read take {self.num_bytes} bytes; limit {self._max_bytes}. "
                "Try again.",
                headers=((b"retry-after", b"1"),),
            )
        self.num_bytes += num_bytes


class BodyShare:
    """What one body has taken of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """As ``BodyBudget.take``, and remembers it."""
        self._budget.take(num_bytes)
        self.num_bytes += num_bytes


async def read_body(
    exchange: Exchange, share: BodyShare, limits: ServerLimits, time_limit: TimeLimit
) -> bytes:
    """The whole body of a JSON request.

    Args:
        exchange: that brings it.
        share: of memory, grows with it.
        limits: of its size.
        time_limit: of ``limits.body_timeout_s``.

    Raises:
        Refusal: 400 (content-length), 408, 413, 415, or 503 (``BodyBudget``).
        ClientGone: the client left, or its body ended, before it was complete.
    """
    _check_media_type(exchange)
    length = _content_length(exchange)
    if length is not None and length > limits.max_body_bytes:
        raise _too_large(f"{length} bytes", limits.max_body_bytes)
    try:
        with time_limit.stretch():
            body = await _collect(exchange, share, limits.max_body_bytes)
    except TimeoutError:
        raise Refusal(
            408,
            "body_timeout",
            f"The body was not complete after {limits.body_timeout_s:g} s. Send it faster.",
            headers=() if exchange.is_http2 else ((b"connection", b"close"),),
        ) from None
    if length is not None and length != len(body):
        raise Refusal(
            400,
            "wrong_content_length",
            f"content-length says {length} bytes, the body has {len(body)}. Make them agree.",
            param="content-length",
        )
    return body


async def _collect(exchange: Exchange, share: BodyShare, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone(
                400, "incomplete_body", "The body ended before it was complete. Send all of it."
            )
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(f"more than {max_bytes} bytes", max_bytes)
        share.take(len(chunk))
        exchange.traffic.num_bytes += len(chunk)
        body += chunk
        if not message.get("more_body", False):
            return bytes(body)


def _content_length(exchange: Exchange) -> int | None:
    value = exchange.header(b"content-length")
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
        raise Refusal(
            400,
            "wrong_content_length",
            "content-length is not a number of bytes. Leave it to your HTTP library.",
            param="content-length",
        )
    return int(value)


def _check_media_type(exchange: Exchange) -> None:
    """Only JSON in UTF-8, unpacked: no other type can be meant, and no bomb can hide."""
    kind, *parameters = (exchange.header(b"content-type") or b"").lower().split(b";")
    if kind.strip() != b"application/json" or not all(map(_is_utf8, parameters)):
        raise Refusal(
            415,
            "unsupported_media_type",
            "The body must be JSON in UTF-8. Send 'Content-Type: application/json'.",
            param="content-type",
        )
    encoding = (exchange.header(b"content-encoding") or b"identity").strip().lower()
    if encoding != b"identity":
        raise Refusal(
            415,
            "unsupported_media_type",
            "Compressed bodies are not read. Send it without Content-Encoding.",
            param="content-encoding",
        )


def _is_utf8(parameter: bytes) -> bool:
    name, _, value = parameter.strip().partition(b"=")
    return not name or name != b"charset" or value in _UTF8_NAMES


def _too_large(shown: str, max_bytes: int) -> Refusal:
    return Refusal(
        413,
        "body_too_large",
        f"The body is too large; got {shown}; limit {max_bytes}. Send less at a time.",
    )
