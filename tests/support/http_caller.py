"""A small HTTP/1.1 client for tests: whole answers and server-sent events."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

TIMEOUT_S = 30.0


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def get(port: int, path: str) -> Answer:
    return _ask(port, "GET", path, None)


def post(port: int, path: str, body: object) -> Answer:
    """``body`` as JSON, or as it is when it is bytes."""
    return _ask(port, "POST", path, body)


def events(port: int, path: str, body: object) -> Iterator[Any]:
    """The JSON of each event, closing the connection when dropped; ``[DONE]`` comes as a text."""
    connection = _send(port, "POST", path, body)
    try:
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response:
            if not line.startswith(b"data: "):
                continue
            data = line.removeprefix(b"data: ").strip()
            yield "[DONE]" if data == b"[DONE]" else msgspec.json.decode(data)
    finally:
        connection.close()


def _ask(port: int, method: str, path: str, body: object) -> Answer:
    connection = _send(port, method, path, body)
    try:
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def _send(port: int, method: str, path: str, body: object) -> http.client.HTTPConnection:
    content = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    connection.request(method, path, content, {"content-type": "application/json"})
    return connection
