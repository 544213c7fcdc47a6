"""The limits of the front door; each is checked before work is done."""

from __future__ import annotations

import msgspec

from hybridgen.server.request_limits import RequestLimits


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times of HTTP. Beyond one of them a request is refused by name."""

    request: RequestLimits = RequestLimits()
    """What a body may ask for."""
    is_lenient: bool = False
    """Unknown keys of a body are ignored and named in a header, not refused."""
    max_body_bytes: int = 32 * 2**20
    """Bytes of one request body."""
    max_buffered_bytes: int = 256 * 2**20
    """Bytes of all request bodies that are being read or parsed at one time."""
    max_header_bytes: int = 64 * 2**10
    """Bytes of all header names and values of a request."""
    body_timeout_s: float = 30.0
    """How long a body may take to arrive completely."""
    slow_reader_timeout_s: float = 30.0
    """How long a client may leave a sent frame unread before its request is cancelled; shorter
    while others wait (server/event_stream.py)."""
    health_timeout_s: float = 3.0
    """How long readiness may take to be proved."""
    tokenize_timeout_s: float = 30.0
    """How long the tree may take to encode a prompt for /tokenize."""
