"""What every ZeroMQ socket of the tree is set to, and which addresses it may use."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import zmq

from hybridgen.errors import ConfigError
from hybridgen.ipc.runtime_dir import MAX_SOCKET_PATH_BYTES

MAX_CLIENT_FRAME_BYTES = 33 * 1024 * 1024
"""A 32 MiB prompt and its envelope."""
HIGH_WATER = 1000
"""Messages queued per peer and direction before sending blocks."""
_RECONNECT_MS = 10
_MAX_RECONNECT_MS = 200


class CurveKeys(NamedTuple):
    """CURVE keys (Z85) for tcp://. A client sets ``server_public``; a server leaves it empty."""

    public: bytes
    secret: bytes
    server_public: bytes = b""


def apply_options(
    socket: zmq.Socket[Any], *, max_frame_bytes: int, high_water: int, curve: CurveKeys | None
) -> None:
    """Bound everything: queues, frames, and the wait at close."""
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = high_water
    socket.maxmsgsize = max_frame_bytes
    socket.reconnect_ivl = _RECONNECT_MS
    socket.reconnect_ivl_max = _MAX_RECONNECT_MS
    if curve is not None:
        socket.curve_publickey = curve.public
        socket.curve_secretkey = curve.secret
        if curve.server_public:
            socket.curve_serverkey = curve.server_public
        else:
            socket.curve_server = True


def check_endpoint(endpoint: str, curve: CurveKeys | None) -> None:
    """Refuse an address that could not work, or that would carry plain text over a network.

    Raises:
        ConfigError: naming the address and the limit.
    """
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        num_bytes = len(os.fsencode(address))
        if not 0 < num_bytes <= MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"a socket path has an unusable length: {address}",
                value=f"{num_bytes} bytes",
                limit=MAX_SOCKET_PATH_BYTES,
                remedy="Choose a shorter --runtime-dir",
            )
    elif scheme == "tcp":
        if curve is None:
            raise ConfigError(
                "tcp needs encryption",
                value=endpoint,
                limit="CURVE keys",
                remedy="Give CURVE keys, or use the runtime directory's ipc sockets",
            )
    else:
        raise ConfigError(
            "an address has an unknown scheme",
            value=endpoint,
            limit="ipc:// or tcp://",
            remedy="Use the address that the server printed",
        )
