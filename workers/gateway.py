"""The gateway: HTTP on one side, an ``AsyncClient`` of its own tree on the other.

Everything runs on one event loop in this process: the application, the client's sockets, the
orders of the supervisor. It holds nothing that must survive it: when it dies its clients see a
reset, the coscheduler ends their requests, and the next incarnation accepts on the same socket.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import logging
import os
import signal
import socket
import time
from collections.abc import Callable

from hybridgen.client.async_client import AsyncClient
from hybridgen.client.limits import ClientLimits
from hybridgen.config import Config, ModelSection
from hybridgen.errors import HybridGenError
from hybridgen.formats.inspect import inspect_model
from hybridgen.ipc.board import Board, BoardSnapshot, ProcessState
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.runtime_dir import gateway_prefix
from hybridgen.messages import WorkerSpec
from hybridgen.server.app import App
from hybridgen.server.counters import Counters
from hybridgen.server.hosts import AllowedHosts
from hybridgen.server.key_file import read_keys
from hybridgen.server.limits import ServerLimits
from hybridgen.server.origins import AllowedOrigins
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.routing import Route
from hybridgen.server.served_models import ServedModels
from hybridgen.server.tool_support import ToolSupport
from hybridgen.text.reasoning import reasoning_format
from hybridgen.text.template_source import template_source
from hybridgen.text.tool_calls.registry import call_format
from hybridgen.text.vocabulary import build_vocabulary
from hybridgen.workers.connection_watch import ConnectionWatch
from hybridgen.workers.gateway_account import GatewayAccount
from hybridgen.workers.http_server import HttpServer
from hybridgen.workers.lifecycle import WorkerContext

logger = logging.getLogger(__name__)

#: How often counters go to the board.
ACCOUNT_S = 1.0
#: At the start the coscheduler is asked this often whether requests would be served.
HEALTH_PAUSE_S = 0.05
HEALTH_TIMEOUT_S = 1.0
#: In a hurry the supervisor kills after 2 s: so long do answers get that are being written.
HURRIED_DRAIN_S = 0.2
#: Those that are cut get this long to say so to their clients.
CUT_S = 0.2
#: Connections without a request end at once; one whose client does not read never does.
CONNECTION_DRAIN_S = 0.2
CLIENT_CLOSE_S = 0.1
#: Objects of as many requests as are open at once come and go without being garbage: looking for
#: cycles among them after every 700 takes 7 % of this process's time.
GARBAGE_THRESHOLD = 20_000


def run(spec: WorkerSpec, control: ControlSocket) -> int:
    """Answer HTTP until told to exit; the exit code."""
    context = WorkerContext(spec, control)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(context))
    return 0


async def serve(context: WorkerContext) -> None:
    """Serve until the order to exit, drain.

    Raises:
        ConfigError: a key file or certificate that cannot be used.
        InternalError: the HTTP server ended without being asked.
    """
    spec = context.spec
    limits = ClientLimits(close_timeout_s=CLIENT_CLOSE_S)
    prefix = gateway_prefix(spec.index, spec.incarnation)
    # Its requests come from bodies, of which every key was checked.
    connection = AsyncClient(spec.runtime_dir, limits=limits, prefix=prefix, is_trusting=True)
    async with connection as client:
        counters = Counters()
        board = Board(context.segment("board").buf)
        account = GatewayAccount(spec, board, context.line, counters)
        app = make_app(client, spec, board, counters=counters, routes=account.routes())
        listener = socket.socket(fileno=os.dup(spec.listener_fd))
        server = HttpServer(app, spec.config.http, spec.listener_fd)
        watch = ConnectionWatch(spec.config.http.port, app.traffic, listener)
        orders = Orders(context)
        gc.freeze()  # what is there now stays
        gc.set_threshold(GARBAGE_THRESHOLD)
        server.start()
        tasks = [
            asyncio.create_task(work)
            for work in (
                server.wait_failed(),
                orders.wait_exit(),
                report(context, client, account),
                watch.run(),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
            context.line.set_state(ProcessState.DRAINING)
            await drain(app, orders, spec.config.server.drain_timeout_s)
            if not await server.stop(CONNECTION_DRAIN_S):
                logger.warning("connections that would not end are cut")
        finally:
            orders.close()
            listener.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def drain(app: App, orders: Orders, timeout_s: float) -> None:
    """Pass on what is being answered; what is left after the time, or in a hurry, is cut."""
    app.start_draining()
    idle = asyncio.create_task(app.wait_idle(timeout_s))
    hurry = asyncio.create_task(orders.is_hurried.wait())
    await asyncio.wait({idle, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    await asyncio.wait({idle}, timeout=HURRIED_DRAIN_S)
    idle.cancel()
    if app.counters.open:
        app.cut_open()
        await app.wait_idle(CUT_S)


def make_app(
    client: AsyncClient, spec: WorkerSpec, board: Board, *, counters: Counters, routes: list[Route]
) -> App:
    """The application for a tree."""
    config: Config = spec.config
    tokenizer = inspect_model(spec.model_path, config).tokenizer
    vocabulary = build_vocabulary(tokenizer)
    template = template_source(tokenizer, config.model.chat_template)
    calls = call_format(template, config.model.tool_call_parser)
    brain = spec.worker_names.index("coscheduler-0")
    models = ServedModels(
        names=model_names(config.model),
        created=int(time.time()),
        max_model_len=config.model.max_model_len,
    )
    return App(
        client,
        models,
        vocabulary,
        keys=read_keys(config.http.api_key_file),
        hosts=AllowedHosts.of(config.http),
        origins=AllowedOrigins.of(config.http),
        counters=counters,
        routes=routes,
        has_console=config.http.console,
        has_queue=lambda: has_queue(board.snapshot(brain)),
        loaded_share=lambda: board.snapshot(0).counters.get("loaded_permille", 0) / 1000,
        limits=ServerLimits(
            is_lenient=config.http.lenient,
            max_body_bytes=config.http.max_body_bytes,
            slow_reader_timeout_s=config.scheduler.slow_reader_timeout_s,
            request=RequestLimits(
                max_model_len=config.model.max_model_len,
                vocab_size=vocabulary.vocab_size,
                tools=ToolSupport.of(calls, vocabulary),
                reasoning=reasoning_format(template, config.model.reasoning_parser),
            ),
        ),
    )


def has_queue(coscheduler: BoardSnapshot) -> bool:
    """Whether requests wait for a place among those that are computed, not just for their ids."""
    counters = coscheduler.counters
    return counters.get("waiting", 0) > counters.get("encoding", 0)


def model_names(config: ModelSection) -> tuple[str, ...]:
    """The served name first; whoever starts `demo` may also ask for it by that word."""
    names = (config.served_model_name, "demo" if config.model == "demo" else "")
    return tuple(dict.fromkeys(name for name in names if name))


class Orders:
    """What the supervisor wants, as something to wait for on the loop.

    Attributes:
        is_hurried: SIGTERM has come, and with it the last two seconds; an order alone leaves the
            time that the drain limit leaves.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[None] = self._loop.create_future()
        self.is_hurried = asyncio.Event()
        self._loop.add_reader(context.control.fileno(), self._read)
        self._loop.add_signal_handler(signal.SIGTERM, self._hurry)

    async def wait_exit(self) -> None:
        """Until told to exit.

        Raises:
            MessageCorrupt: the supervisor sent what is no order.
        """
        await self._exit

    def close(self) -> None:
        """Watch no more."""
        self._loop.remove_reader(self._context.control.fileno())
        self._loop.remove_signal_handler(signal.SIGTERM)

    def _read(self) -> None:
        try:
            self._context.read_orders()
        except HybridGenError as error:
            self._loop.remove_reader(self._context.control.fileno())
            if not self._exit.done():
                self._exit.set_exception(error)
            return
        if self._context.should_exit:
            self._finish()

    def _hurry(self) -> None:
        self.is_hurried.set()
        self._finish()

    def _finish(self) -> None:
        if not self._exit.done():
            self._exit.set_result(None)


async def report(context: WorkerContext, client: AsyncClient, account: GatewayAccount) -> None:
    """Tell the supervisor that this process can work, then keep the board up to date."""
    if context.spec.incarnation == 1:
        await wait_served(client)
    context.ready()
    while True:
        account.look()
        context.line.beat()
        await asyncio.sleep(ACCOUNT_S)


async def wait_served(client: AsyncClient) -> None:
    """Until a request would be served: a tree that shows its address keeps what it promises."""
    while True:
        try:
            if (await client.health(timeout_s=HEALTH_TIMEOUT_S)).is_ready:
                return
        except HybridGenError as error:
            logger.debug("no word from the coscheduler: %s", error)
        await asyncio.sleep(HEALTH_PAUSE_S)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The loop of uvloop where that is installed, which costs less per event."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop
    uvloop = importlib.import_module("uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
