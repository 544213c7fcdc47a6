"""The front door as a plain ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from hybridgen import fault
from hybridgen.clock import Clock
from hybridgen.errors import Draining, HybridGenError, InternalError, SlowReader
from hybridgen.server.auth import ApiKeys
from hybridgen.server.backend import Backend
from hybridgen.server.console import console_routes
from hybridgen.server.counters import Counters
from hybridgen.server.endpoints import Endpoints
from hybridgen.server.event_stream import ReadingTime
from hybridgen.server.events import error_event
from hybridgen.server.exchange import Exchange, Receive, Scope, Send
from hybridgen.server.health import Health
from hybridgen.server.hosts import AllowedHosts
from hybridgen.server.http_errors import error_body, error_type
from hybridgen.server.limits import ServerLimits
from hybridgen.server.logprobs import Vocabulary
from hybridgen.server.origins import AllowedOrigins
from hybridgen.server.refusal import JSON_TYPE, ClientGone, Refusal, Reply
from hybridgen.server.routing import Route, Router
from hybridgen.server.served_models import ServedModels
from hybridgen.server.traffic import Traffic

_log = logging.getLogger(__name__)


class App:
    """An ASGI callable. Use it on one loop, the one of its backend.

    Args:
        backend: an ``AsyncClient``.
        models: the names it is served under.
        vocabulary: turns ids into texts here.
        keys: who may ask for anything but health; ``None`` lets everybody in.
        hosts: names to answer to, ``None`` is any; origins: whose pages may read answers.
        counters: where it counts; routes: further ones than the API's.
        has_console: serve the page at ``/``.
        loaded_share: how far the start of the tree is, 0 … 1.
        has_queue: whether requests wait to be computed.
        unix_time: seconds since 1970.
    """

    def __init__(
        self,
        backend: Backend,
        models: ServedModels,
        vocabulary: Vocabulary,
        *,
        keys: ApiKeys | None = None,
        hosts: AllowedHosts | None = None,
        origins: AllowedOrigins | None = None,
        limits: ServerLimits | None = None,
        counters: Counters | None = None,
        routes: Iterable[Route] = (),
        has_console: bool = False,
        loaded_share: Callable[[], float] = lambda: 1.0,
        has_queue: Callable[[], bool] = lambda: False,
        unix_time: Clock = time.time,
    ) -> None:
        self.counters = counters or Counters()
        self._keys = keys
        self._hosts = hosts
        self._origins = origins
        self._limits = limits or ServerLimits()
        self._health = Health(backend, self._limits.health_timeout_s, loaded_share)
        endpoints = Endpoints(
            backend,
            models,
            vocabulary,
            health=self._health,
            limits=self._limits,
            counters=self.counters,
            needs_key=keys is not None,
            reading_time=ReadingTime(self._limits.slow_reader_timeout_s, has_queue),
            routes=(mounted := tuple(routes)),
            unix_time=unix_time,
        )
        page = console_routes() if has_console else []
        self._router = Router([*_routes(endpoints), *mounted, *page])
        self.traffic = Traffic()
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_cut = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    # --- stopping -------------------------------------------------------------------------------

    def start_draining(self) -> None:
        """Refuse new work from now on; what runs goes on."""
        self._health.is_draining = True

    async def wait_idle(self, timeout_s: float) -> int:
        """Wait until no request is open; how many still are after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()
        except TimeoutError:
            return len(self._tasks)
        return 0

    def cut_open(self) -> None:
        """End every open request with an error that says why."""
        self._is_cut = True
        for task in self._tasks:
            task.cancel()

    # --- serving --------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's life."""
        match scope["type"]:
            case "http":
                traffic = self.traffic.of(scope.get("client"))
                await self._serve(Exchange(scope, receive, send, traffic))
            case "lifespan":
                await _live(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1003})

    async def _serve(self, exchange: Exchange) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("the application must run in an asyncio task")
        self._opened(task)
        try:
            await self._answer(exchange)
        finally:
            self._closed(task)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            reply = await self._handle(exchange)
        except ClientGone as gone:
            self.counters.disconnects += 1
            if not exchange.is_started:
                await exchange.reply(_refused(gone))
        except Refusal as refusal:
            await self._reply(exchange, _refused(refusal))
        except HybridGenError as error:
            await self._fail(exchange, error)
        except asyncio.CancelledError:
            if not self._is_cut:
                raise
            await self._fail(exchange, _cut())
        except Exception as error:  # noqa: BLE001  # logged; this request ends, the others go on
            _log.exception("%s %s failed", exchange.method, exchange.path)
            await self._fail(exchange, _bug(error))
        else:
            if reply is not None:
                await self._reply(exchange, reply)

    async def _reply(self, exchange: Exchange, reply: Reply) -> None:
        self.counters.answered(reply.status)
        await exchange.reply(reply)

    async def _handle(self, exchange: Exchange) -> Reply | None:
        exchange.check_headers(self._limits.max_header_bytes)
        if self._hosts is not None:
            self._hosts.check(exchange.header(b"host"))
        if self._origins is not None:
            self._origins.mark(exchange)
            if (reply := self._origins.preflight(exchange)) is not None:
                return reply
        route = self._router.find(exchange.method, exchange.path)
        is_open = isinstance(route, Route) and route.is_open
        if self._keys is not None and not is_open:
            self._keys.check(exchange.header(b"authorization"))
        if isinstance(route, Refusal):
            raise route
        if route.is_work:
            fault.point("gateway.request")
            self._health.check_accepting()
        return await route.handler(exchange)

    async def _fail(self, exchange: Exchange, error: HybridGenError) -> None:
        """Tell the client, in the place where the answer has got to."""
        if not exchange.is_started:
            await self._reply(exchange, error_body(error))
            return
        if isinstance(error, SlowReader):  # it would not read this either
            self.counters.disconnects += 1
            return
        self.counters.errors += 1
        if exchange.is_finished:
            return
        try:
            async with asyncio.timeout(self._limits.slow_reader_timeout_s):
                await exchange.send_body(error_event(error), is_last=True)
        except TimeoutError:
            _log.info("request %s: its client read no error", exchange.request_id.decode())

    # --- what is open ---------------------------------------------------------------------------

    def _opened(self, task: asyncio.Task[object]) -> None:
        self._tasks.add(task)
        self._is_idle.clear()
        self.counters.requests += 1
        self.counters.open += 1

    def _closed(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        self.counters.open -= 1
        if not self._tasks:
            self._is_idle.set()


def _routes(endpoints: Endpoints) -> list[Route]:
    return [
        Route("POST", "/v1/chat/completions", endpoints.chat, is_work=True),
        Route("POST", "/v1/completions", endpoints.completion, is_work=True),
        Route("POST", "/tokenize", endpoints.tokenize, is_work=True),
        Route("POST", "/detokenize", endpoints.detokenize, is_work=True),
        Route("GET", "/v1/models", endpoints.list_models),
        Route("GET", "/v1/models/", endpoints.show_model),
        Route("GET", "/openapi.json", endpoints.openapi),
        Route("GET", "/version", endpoints.version),
        Route("GET", "/ps", endpoints.ps),
        Route("GET", "/health", endpoints.ready, is_open=True),
        Route("GET", "/health/ready", endpoints.ready, is_open=True),
        Route("GET", "/health/live", endpoints.live, is_open=True),
        Route("GET", "/health/startup", endpoints.started, is_open=True),
    ]


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _refused(refusal: Refusal) -> Reply:
    error = {
        "message": refusal.message,
        "type": error_type(refusal.status),
        "param": refusal.param,
        "code": refusal.code,
    }
    body = msgspec.json.encode({"error": error})
    return Reply(refusal.status, [JSON_TYPE, *refusal.headers], body)


def _cut() -> Draining:
    return Draining(
        "the server stopped before this request was complete",
        remedy="Send it again",
        retry_after_s=1,
    )


def _bug(error: Exception) -> InternalError:
    return InternalError(
        f"the server failed at this request ({type(error).__name__})",
        remedy="Please report it with the x-request-id and the server's log",
    )
