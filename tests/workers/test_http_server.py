"""The embedded HTTP server over a toy application: sockets, protocols and the end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hybridgen.config import HttpSection
from hybridgen.errors import ConfigError
from hybridgen.workers.http_server import MAX_HEADER_BYTES, HttpServer
from tests.support.free_port import free_port

Work = Callable[[HttpServer, int], Awaitable[None]]


async def application(scope: Any, _receive: Any, send: Any) -> None:
    """Answers its protocol version; /endless never ends."""
    is_endless = scope["path"] == "/endless"
    kind = b"text/event-stream" if is_endless else b"text/plain"
    head = {"status": 200, "headers": [(b"content-type", kind)]}
    await send({"type": "http.response.start", **head})
    while is_endless:
        await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": scope["http_version"].encode()})


def listening_on(port: int) -> int:
    """A descriptor for the server to own."""
    return socket.create_server(("127.0.0.1", port)).detach()


def serve(work: Work, **options: Any) -> None:
    async def main() -> None:
        port = free_port()
        server = HttpServer(application, HttpSection(**options), listening_on(port))
        server.start()
        try:
            await work(server, port)
        finally:
            await server.stop(0.2)

    asyncio.run(main())


@pytest.fixture(scope="session", autouse=True)
def is_warm() -> None:
    """Two sockets of tokio's signal handling are made once a process, and stay."""

    async def nothing(_server: HttpServer, port: int) -> None:
        await ask(port, GET + b"\r\n")

    serve(nothing)


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 5.0)
    finally:
        writer.close()
        await writer.wait_closed()


GET = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"


def test_a_request_is_answered_and_the_stop_is_clean() -> None:
    async def work(server: HttpServer, port: int) -> None:
        answer = await ask(port, GET + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"1.1")
        assert await server.stop(1.0)
        with pytest.raises(ConnectionError):
            await ask(port, GET + b"\r\n")

    serve(work)


def test_a_unix_socket_is_served_too(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")

    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            server = HttpServer(application, HttpSection(uds=path), os.dup(listener.fileno()))
        server.start()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET + b"\r\n")
        answer = await asyncio.wait_for(reader.read(), 5.0)
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 200")
        assert await server.stop(1.0)

    asyncio.run(main())


def test_headers_beyond_the_limit_are_refused() -> None:
    async def work(_server: HttpServer, port: int) -> None:
        answer = await ask(port, GET + b"x: " + b"a" * MAX_HEADER_BYTES + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 431")

    serve(work)


def test_the_stop_does_not_wait_for_a_stream_that_never_ends() -> None:
    async def work(server: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"data: x")
        async with asyncio.timeout(1.0):
            assert not await server.stop(0.1)
        writer.close()

    serve(work)


def test_a_certificate_that_is_none_is_a_typed_error(tmp_path: Any) -> None:
    certificate = tmp_path / "cert.pem"
    certificate.write_text("nothing")

    async def work() -> None:
        options = {"tls_certificate": str(certificate), "tls_key": str(certificate)}
        port = free_port()
        with pytest.raises(ConfigError, match="certificate"):
            HttpServer(application, HttpSection(**options), listening_on(port)).start()
        with pytest.raises(ConnectionRefusedError):
            await ask(port, GET)

    asyncio.run(work())


def test_the_log_handlers_stay_as_they_were() -> None:
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)

    async def work(_server: HttpServer, _port: int) -> None:
        assert handler in logging.getLogger().handlers
        own = logging.getLogger("_granian").handlers
        assert all(isinstance(one, logging.NullHandler) for one in own)

    try:
        serve(work)
    finally:
        logging.getLogger().removeHandler(handler)
