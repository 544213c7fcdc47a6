"""HTTP/2 frames as bytes (RFC 9113), for tools that send what no client library would."""

from __future__ import annotations

import struct

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING = 0, 1, 2, 3, 4, 6
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame as it goes over the wire (RFC 9113, section 4.1)."""
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream)
    return head + payload


def head_block(method: str, path: str) -> bytes:
    """A request's header block that leaves the server's dynamic table as it is."""
    fields = [
        (":method", method),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", path),
    ]
    fields.append(("content-type", "application/json"))
    encoder = hpack.Encoder()
    return bytes(encoder.encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields]))


def settings(window: int | None = None) -> bytes:
    """The first frames of a client; ``window`` is what it lets the server send on a stream."""
    body = b"" if window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
    return PREFACE + frame(SETTINGS, 0, 0, body)
