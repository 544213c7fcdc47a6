"""granian inside our own event loop, on a socket of our own.

Two things of granian's are not used. It binds with SO_REUSEPORT, so a second server on the port
would share it without a word: the socket here is bound without, and a taken port is an error. Its
stop waits for open connections without limit: here it has a deadline, beyond which the process's
end cuts them. Its Rust threads only move bytes; the application runs on the loop of the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels, logger
from granian.server.embed import Server

from hybridgen.config import HttpSection
from hybridgen.errors import AddressUnavailable, ConfigError, InternalError

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

#: Connections that the kernel completes while the loop is busy.
BACKLOG = 1024
MAX_HEADER_BYTES = 64 * 1024
HEADER_TIMEOUT_MS = 10_000
#: Streams at once on one HTTP/2 connection.
MAX_STREAMS = 200
_TAKEN = {errno.EADDRINUSE: "is taken", errno.EADDRNOTAVAIL: "is not on this machine"}


class HttpServer:
    """Serves one ASGI application on one TCP port, HTTP/1.1 and HTTP/2 alike.

    Args:
        app: called for every request, without lifespan events.
        config: address, TLS and limits.
    """

    def __init__(self, app: AsgiApp, config: HttpSection) -> None:
        self._app = app
        self._config = config
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen, and serve from the next turn of the running loop on.

        Raises:
            AddressUnavailable: the port is taken, or the address not on this machine.
            ConfigError: the certificate or its key cannot be used.
        """
        listener = listen(self._config.host, self._config.port)
        try:
            self._server = _make_server(self._app, self._config, listener)
        except BaseException:
            listener.close()
            raise
        self._task = asyncio.get_running_loop().create_task(self._server.serve())

    async def wait_failed(self) -> None:
        """Sleep for as long as the server serves.

        Raises:
            InternalError: it ended without being asked.
        """
        if self._task is not None:
            await asyncio.wait({self._task})
            cause = None if self._task.cancelled() else self._task.exception()
            raise InternalError("the HTTP server ended without being asked") from cause

    async def stop(self, timeout_s: float) -> bool:
        """Accept nothing more, let open connections end; False when some had to be left open."""
        if self._server is None or self._task is None:
            return True
        self._server.stop()  # type: ignore[no-untyped-call]  # granian annotates nothing here
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            _silence()
            self._task.cancel()
            await asyncio.wait({self._task})
        return bool(done)


def _silence() -> None:
    """What is cut now would be reported once more, with a traceback each."""
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


class _OwnSocketServer(Server):
    """granian's server on a socket that is bound already."""

    own_socket: SocketHolder

    def _init_shared_socket(self) -> None:
        self._ssp = None
        self._shd = self.own_socket  # type: ignore[assignment]  # inferred from its first None


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket that nobody else can share.

    Raises:
        AddressUnavailable: the port is taken, forbidden, or the address not on this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as stack:
            stack.callback(listener.close)
            # Connections of a predecessor that died may still be winding down.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            stack.pop_all()
    except OSError as error:
        reason = _TAKEN.get(error.errno or 0, f"cannot be used: {error.strerror}")
        raise AddressUnavailable(
            f"the address to listen on {reason}",
            value=f"{host} port {port}",
            remedy="Choose another --port or --host, or end whoever listens there (`ss -ltnp`)",
        ) from None
    return listener


def _make_server(app: AsgiApp, config: HttpSection, listener: socket.socket) -> Server:
    certificate, key = config.tls_certificate, config.tls_key
    try:
        server = _OwnSocketServer(
            app,
            address=config.host,
            port=config.port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.auto,
            websockets=False,
            backlog=BACKLOG,
            backpressure=config.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=HEADER_TIMEOUT_MS, max_buffer_size=MAX_HEADER_BYTES
            ),
            http2_settings=HTTP2Settings(
                max_headers_size=MAX_HEADER_BYTES, max_concurrent_streams=MAX_STREAMS
            ),
            # Incremental: it would otherwise take the handlers of all loggers away.
            log_dictconfig={
                "incremental": True,
                "formatters": {},
                "handlers": {},
                "loggers": {"_granian": {"propagate": True}},
            },
            log_level=LogLevels.error,
            ssl_cert=Path(certificate) if certificate else None,
            ssl_key=Path(key) if key else None,
            ssl_protocol_min=SSLProtocols.tls12,
        )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate or its key cannot be used: {error}",
            value=f"{certificate}, {key}",
            remedy="Give PEM files that belong together with --tls-certificate and --tls-key",
        ) from None
    fd = os.dup(listener.fileno())  # granian closes it
    listener.close()
    server.own_socket = SocketHolder(fd, False, BACKLOG)  # type: ignore[call-arg]  # not in its stub
    return server
