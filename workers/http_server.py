"""granian inside our own event loop, on a socket of our own.

Two things of granian's are not used. It binds with SO_REUSEPORT, so a second server on the port
would share it without a word: here it is given a socket that listens already. Its stop waits for
open connections without limit: here it has a deadline, beyond which the process's end cuts them.
Its Rust threads only move bytes; the application runs on the loop of the caller.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels, logger
from granian.server.embed import Server

from hybridgen.config import LISTEN_BACKLOG, HttpSection
from hybridgen.errors import ConfigError, InternalError

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

MAX_HEADER_BYTES = 64 * 1024
HEADER_TIMEOUT_MS = 10_000
#: Streams at once on one HTTP/2 connection.
MAX_STREAMS = 200
#: Of an HTTP/2 stream whose client may be sent more, but whose connection is full.
MAX_UNSENT_BYTES = 64 * 1024


class HttpServer:
    """Serves one ASGI application on one listening socket, HTTP/1.1 and HTTP/2 alike.

    Args:
        app: called for every request, without lifespan events.
        config: TLS and limits, and whether the socket is a unix domain one.
        listener_fd: listens already; closed at the end.
    """

    def __init__(self, app: AsgiApp, config: HttpSection, listener_fd: int) -> None:
        self._app = app
        self._config = config
        self._listener_fd = listener_fd
        self._server: _OwnSocketServer | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve from the next turn of the running loop on.

        Raises:
            ConfigError: the certificate or its key cannot be used.
        """
        try:
            self._server = _make_server(self._app, self._config)
        except BaseException:
            os.close(self._listener_fd)
            raise
        is_unix = bool(self._config.uds)
        self._server.own_socket = SocketHolder(self._listener_fd, is_unix, LISTEN_BACKLOG)  # type: ignore[call-arg]  # not in its stub
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


def _make_server(app: AsgiApp, config: HttpSection) -> _OwnSocketServer:
    certificate, key = config.tls_certificate, config.tls_key
    try:
        return _OwnSocketServer(
            app,
            interface=Interfaces.ASGINL,
            http=HTTPModes.auto,
            websockets=False,
            backlog=LISTEN_BACKLOG,
            backpressure=config.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=HEADER_TIMEOUT_MS, max_buffer_size=MAX_HEADER_BYTES
            ),
            http2_settings=HTTP2Settings(
                max_headers_size=MAX_HEADER_BYTES,
                max_concurrent_streams=MAX_STREAMS,
                max_send_buffer_size=MAX_UNSENT_BYTES,
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
