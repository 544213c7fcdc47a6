"""Clients of a running tree: ``Client`` for threads, ``AsyncClient`` for asyncio.

Both drive the same ``Session``; see session.py for what survives what. Loaded on first use, so
that the pure parts can be imported without sockets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridgen.client.async_client import AsyncClient
    from hybridgen.client.async_stream import AsyncStream
    from hybridgen.client.chunk import StreamChunk
    from hybridgen.client.client import Client
    from hybridgen.client.limits import ClientLimits
    from hybridgen.client.stream import Stream

__all__ = ["AsyncClient", "AsyncStream", "Client", "ClientLimits", "Stream", "StreamChunk"]

_HOMES = {
    "AsyncClient": "async_client",
    "AsyncStream": "async_stream",
    "Client": "client",
    "ClientLimits": "limits",
    "Stream": "stream",
    "StreamChunk": "chunk",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hybridgen.client' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hybridgen.client.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
