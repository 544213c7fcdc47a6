"""What only HTTP can be wrong about: paths, methods, media types, keys, sizes of bodies."""

from __future__ import annotations

from typing import NamedTuple

Header = tuple[bytes, bytes]
JSON_TYPE: Header = (b"content-type", b"application/json")


class Reply(NamedTuple):
    """A whole answer; the content length and the request id are added when it is sent."""

    status: int
    headers: list[Header]
    body: bytes


class Refusal(Exception):
    """Ends one request with an error answer that names all four fields.

    Args:
        status: the HTTP status, 4xx or 503.
        code: a word for programs.
        message: what is wrong, the value, the limit and the remedy.
        param: the offending header or key, where there is one.
        headers: added to the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = headers


class ClientGone(Refusal):
    """The client has left. One that only stopped sending may still read why it gets no answer."""

    def __init__(
        self,
        status: int = 499,
        code: str = "client_closed_request",
        message: str = "The client left before its answer was complete.",
    ) -> None:
        super().__init__(status, code, message)
