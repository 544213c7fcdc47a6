"""Plays the server under an ASGI application: one request, step by step, no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

App = Callable[[Any, Any, Any], Awaitable[None]]

JSON_HEADERS = {"content-type": "application/json"}


class Visit:
    """A client's request and what came back.

    Args:
        body: bytes, a value for JSON, or chunks of bytes.
        headers: beside the content type of JSON; a value ``None`` leaves a header out.
        is_endless: the body never ends.
    """

    def __init__(
        self,
        app: App,
        method: str,
        path: str,
        body: Any = b"",
        headers: Mapping[str, str | None] | None = None,
        *,
        http_version: str = "1.1",
        is_endless: bool = False,
        raw_headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        given = {**(JSON_HEADERS if method == "POST" else {}), **(headers or {})}
        self._scope = {
            "type": "http",
            "http_version": http_version,
            "method": method,
            "path": path.partition("?")[0],
            "query_string": path.partition("?")[2].encode(),
            "client": ("127.0.0.1", 4711),
            "headers": [
                *((k.encode(), v.encode()) for k, v in given.items() if v is not None),
                *raw_headers,
            ],
        }
        self._app = app
        self._chunks = _chunks(body)
        self._is_endless = is_endless
        self._gone = asyncio.Event()
        self._moved = asyncio.Event()
        self._reads_on = False
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._news = asyncio.Event()
        self._is_taken = asyncio.Event()
        self.frames: list[bytes] = []
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.task: asyncio.Task[None] | None = None

    # --- the client's side ----------------------------------------------------------------------

    def begin(self) -> Visit:
        """Send the request."""
        self.task = asyncio.create_task(self._run())
        return self

    async def done(self, timeout_s: float = 5.0) -> Visit:
        """Wait until the application has returned."""
        if self.task is None:
            self.begin()
        assert self.task is not None
        async with asyncio.timeout(timeout_s):
            await self.task
        return self

    def leave(self, *, reads_on: bool = False) -> None:
        """Be gone; or only send nothing more, which servers tell in the same way."""
        self._reads_on = reads_on
        self._gone.set()
        self._moved.set()

    def send_rest(self, chunk: bytes) -> None:
        """End a body that was endless until now."""
        self._chunks.append(chunk)
        self._is_endless = False
        self._moved.set()
        self._moved = self._gone

    def stop_reading(self) -> None:
        """Every send of the application waits from now on."""
        self._may_send.clear()

    def read_on(self) -> None:
        """Read again."""
        self._may_send.set()

    async def frames_come(self, num_frames: int, timeout_s: float = 5.0) -> None:
        """Wait until so many pieces of the body have arrived."""
        async with asyncio.timeout(timeout_s):
            while len(self.frames) < num_frames:
                self._news.clear()
                await self._news.wait()

    async def body_is_taken(self, timeout_s: float = 5.0) -> None:
        """Wait until the application has all of the body and asks for more."""
        async with asyncio.timeout(timeout_s):
            await self._is_taken.wait()

    # --- what came back -------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.frames)

    @property
    def json(self) -> Any:
        """The body as a value."""
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the answer, which must have exactly the four fields."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert isinstance(error["type"], str)
        assert isinstance(error["code"], str)
        return dict(error)

    @property
    def events(self) -> list[Any]:
        """The values of the stream's data lines, ``[DONE]`` as a text."""
        events = []
        for block in self.body.decode().split("\n\n"):
            if block.startswith("data: "):
                data = block.removeprefix("data: ")
                events.append(data if data == "[DONE]" else msgspec.json.decode(data))
            else:
                assert block == "", block
        return events

    # --- the server's side ----------------------------------------------------------------------

    async def _run(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._gone.is_set() and self._chunks:
            chunk = self._chunks.pop(0)
            has_more = bool(self._chunks) or self._is_endless
            return {"type": "http.request", "body": chunk, "more_body": has_more}
        self._is_taken.set()
        await self._moved.wait()
        if not self._gone.is_set():
            return await self._receive()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._gone.is_set() and not self._reads_on:
            return  # as servers do: a send never fails
        await self._may_send.wait()
        if message["type"] == "http.response.start":
            assert self.status is None
            self.status = message["status"]
            headers = [(k.decode(), v.decode()) for k, v in message["headers"]]
            assert all(k == k.lower() for k, _ in headers)
            self.headers = dict(headers)
            return
        assert self.status is not None
        assert not self.is_complete
        self.is_complete = not message["more_body"]
        self.frames.append(message["body"])
        self._news.set()


async def ask(app: App, method: str, path: str, body: Any = b"", **options: Any) -> Visit:
    """A whole visit."""
    return await Visit(app, method, path, body, **options).done()


def _chunks(body: Any) -> list[bytes]:
    if isinstance(body, bytes):
        return [body]
    if isinstance(body, list) and all(isinstance(chunk, bytes) for chunk in body):
        return list(body)
    return [msgspec.json.encode(body)]
