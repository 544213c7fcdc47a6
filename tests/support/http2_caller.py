"""A raw HTTP/2 client (prior knowledge) for tests: streams, and every way to leave them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import TracebackType

import h2.config
import h2.connection
import h2.events
import msgspec
from hyperframe.frame import GoAwayFrame

TIMEOUT_S = 30.0


class Http2Caller:
    """One connection; as a context manager it is closed at the end."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._state = h2.connection.H2Connection(config)
        self._state.initiate_connection()
        self._state.increment_flow_control_window(2**30)
        self._flush()
        self.bodies: dict[int, bytes] = {}
        self.statuses: dict[int, int] = {}

    def post(self, path: str, body: object) -> int:
        """Send a whole request; its stream."""
        stream = self._state.get_next_available_stream_id()
        content = msgspec.json.encode(body)
        headers = [
            (":method", "POST"),
            (":path", path),
            (":scheme", "http"),
            (":authority", "localhost"),
            ("content-type", "application/json"),
        ]
        self._state.send_headers(stream, headers)
        self._state.send_data(stream, content, end_stream=True)
        self._flush()
        self.bodies[stream] = b""
        return stream

    def read_until(self, stream: int, expected: bytes) -> bytes:
        """The body of ``stream`` so far, once ``expected`` is in it."""
        while expected not in self.bodies[stream]:
            self._read()
        return self.bodies[stream]

    def reset(self, stream: int) -> None:
        """RST_STREAM with CANCEL."""
        self._state.reset_stream(stream, 8)
        self._flush()

    def go_away(self) -> None:
        """GOAWAY without an error; sent past the state machine, which would read no more."""
        self._socket.sendall(GoAwayFrame(0).serialize())

    def half_close(self) -> None:
        """Send nothing more, but go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Http2Caller:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        received = self._socket.recv(1 << 16)
        assert received, "the server closed the connection"
        for event in self._state.receive_data(received):
            if isinstance(event, h2.events.ResponseReceived):
                headers: Mapping[str, str] = dict(event.headers)
                self.statuses[event.stream_id] = int(headers[":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] += event.data
                self._state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._state.data_to_send())
