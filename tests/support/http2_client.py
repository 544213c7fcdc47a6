"""A small HTTP/2 client for tests: many streams on one connection, each read at its own pace.

And every way to leave them.
"""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import Any

import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from hyperframe.frame import GoAwayFrame

TIMEOUT_S = 30.0
_READ_BYTES = 1 << 16


class Http2Stream:
    """What came back on one stream."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.has_ended = False
        self.was_reset = False
        self.num_unread = 0
        """Bytes that the server may not send again before they are acknowledged."""

    @property
    def events(self) -> list[Any]:
        """Data of the server-sent events so far, ``[DONE]`` as a text."""
        blocks = self.body.decode().split("\n\n")[:-1]
        data = [block.removeprefix("data: ") for block in blocks]
        return [one if one == "[DONE]" else msgspec.json.decode(one) for one in data]


class Http2Connection:
    """With prior knowledge, or over TLS.

    Args:
        port: on this machine.
        tls: turns TLS on; ALPN must then choose h2.
        authority: what the server is called.
    """

    def __init__(
        self, port: int, tls: ssl.SSLContext | None = None, authority: str = "localhost"
    ) -> None:
        self._authority = authority
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
            assert self._socket.selected_alpn_protocol() == "h2"
        self._h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self.streams: dict[int, Http2Stream] = {}
        self.unread: set[int] = set()
        """Streams that nobody reads: what they bring is not acknowledged."""
        self.flush()

    def __enter__(self) -> Http2Connection:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, method: str, path: str, body: object = None) -> int:
        """Send a request, its body as JSON; the number of its stream."""
        stream = self._h2.get_next_available_stream_id()
        head = [
            (":method", method),
            (":path", path),
            (":scheme", "http"),
            (":authority", self._authority),
        ]
        content = b"" if body is None else msgspec.json.encode(body)
        if content:
            head.append(("content-type", "application/json"))
        self._h2.send_headers(stream, head, end_stream=not content)
        if content:
            self._h2.send_data(stream, content, end_stream=True)
        self.streams[stream] = Http2Stream()
        self.flush()
        return stream

    def reset(self, stream: int) -> None:
        """Take a request back."""
        self._h2.reset_stream(stream, 8)
        self.flush()

    def go_away(self) -> None:
        """GOAWAY without an error; sent past the state machine, which would read no more."""
        self._socket.sendall(GoAwayFrame(0).serialize())

    def half_close(self) -> None:
        """Send nothing more, but go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        self._socket.close()

    def wait(self, *streams: int) -> None:
        """Read until these have ended."""
        while not all(self.streams[one].has_ended for one in streams):
            self.read()

    def get(self, path: str) -> int:
        """The status of a path."""
        stream = self.send("GET", path)
        self.wait(stream)
        return self.streams[stream].status

    def read(self) -> None:
        """Read what comes next."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the server ended the connection")
        for event in self._h2.receive_data(data):
            self._take(event)
        self.flush()

    def flush(self) -> None:
        """Send what is to be sent."""
        self._socket.sendall(self._h2.data_to_send())

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                stream = self.streams[event.stream_id]
                stream.headers = {str(name): str(value) for name, value in event.headers}
                stream.status = int(stream.headers[":status"])
            case DataReceived():
                self._take_data(event)
            case StreamEnded():
                self.streams[event.stream_id].has_ended = True
            case StreamReset():
                stream = self.streams[event.stream_id]
                stream.has_ended = stream.was_reset = True

    def _take_data(self, event: DataReceived) -> None:
        stream = self.streams[event.stream_id]
        stream.body += event.data
        length = event.flow_controlled_length
        if event.stream_id in self.unread:
            stream.num_unread += length
            self._h2.increment_flow_control_window(length)  # of the connection alone
        elif not stream.has_ended:
            self._h2.acknowledge_received_data(length, event.stream_id)
