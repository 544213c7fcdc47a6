"""What each path does."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from hybridgen.clock import Clock
from hybridgen.request import Prompt, RequestOutput
from hybridgen.server.alarms import Alarms
from hybridgen.server.answers import (
    AnswerHead,
    detokenize_answer,
    model_answer,
    models_answer,
    new_id,
    tokenize_answer,
    whole_answer,
)
from hybridgen.server.backend import Backend, BackendStream
from hybridgen.server.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from hybridgen.server.body import BodyBudget, read_body
from hybridgen.server.client_watch import UNWATCHED_S, ClientWatch
from hybridgen.server.counters import Counters
from hybridgen.server.event_stream import EventStream, ReadingTime
from hybridgen.server.events import EventEncoder
from hybridgen.server.exchange import Exchange
from hybridgen.server.generation import Generation
from hybridgen.server.health import Health
from hybridgen.server.lenience import ignored_header, without_unknown_keys
from hybridgen.server.limits import ServerLimits
from hybridgen.server.logprobs import Vocabulary
from hybridgen.server.openapi import openapi
from hybridgen.server.process_facts import process_facts
from hybridgen.server.refusal import JSON_TYPE, Reply
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.routing import Route
from hybridgen.server.schema import (
    read_chat,
    read_completion,
    read_detokenize,
    read_tokenize,
)
from hybridgen.server.served_models import ServedModels
from hybridgen.server.stream import stream_generation
from hybridgen.server.time_limit import TimeLimit
from hybridgen.version import __version__

Order = TypeVar("Order")

_MODELS_PATH = "/v1/models/"


class Endpoints:
    """The handlers, each called with an exchange whose client was let in."""

    def __init__(
        self,
        backend: Backend,
        models: ServedModels,
        vocabulary: Vocabulary,
        *,
        health: Health,
        limits: ServerLimits,
        counters: Counters,
        needs_key: bool,
        reading_time: ReadingTime,
        routes: Sequence[Route] = (),
        unix_time: Clock,
    ) -> None:
        self._backend = backend
        self._models = models
        self._vocabulary = vocabulary
        self._health = health
        self._limits = limits
        self._counters = counters
        self._needs_key = needs_key
        self._reading_time = reading_time
        self._routes = routes
        self._unix_time = unix_time
        self._bodies = BodyBudget(limits.max_buffered_bytes)
        self._body_time = TimeLimit(limits.body_timeout_s)
        self._watches: Alarms[ClientWatch] = Alarms(UNWATCHED_S, ClientWatch.begin)

    # --- generating -----------------------------------------------------------------------------

    async def chat(self, exchange: Exchange) -> Reply | None:
        """POST /v1/chat/completions."""
        return await self._generate(exchange, await self._read(exchange, read_chat, ChatBody))

    async def completion(self, exchange: Exchange) -> Reply | None:
        """POST /v1/completions."""
        return await self._generate(
            exchange, await self._read(exchange, read_completion, CompletionBody)
        )

    async def _generate(self, exchange: Exchange, generation: Generation) -> Reply | None:
        model = self._models.resolve(generation.model)
        head = AnswerHead(
            id=new_id(generation, exchange.request_id.decode()),
            created=int(self._unix_time()),
            model=model,
        )
        streams: list[BackendStream] = []
        async with ClientWatch(exchange, self._watches) as watch:
            try:
                self._submit(generation, exchange.traceparent, streams)
                if not generation.is_stream:
                    outputs = await _results(streams)
                    whole = await whole_answer(head, generation, outputs, self._vocabulary)
                    return _json(whole)
                encoder = EventEncoder(head, generation, self._vocabulary)
                async with EventStream(
                    exchange, watch, self._counters, self._reading_time,
                    lambda: any(stream.ended is None for stream in streams),
                ) as events:  # fmt: skip
                    await stream_generation(generation, streams, encoder, events)
            finally:
                for stream in streams:  # whatever happens, nothing runs on for nobody
                    stream.close()
        return None

    def _submit(
        self, generation: Generation, traceparent: str, streams: list[BackendStream]
    ) -> None:
        for index in range(generation.num_choices):
            prompt, params = generation.choice(index)
            stream = self._backend.submit(
                prompt, params, priority=generation.priority, traceparent=traceparent
            )
            streams.append(stream)

    # --- texts and ids --------------------------------------------------------------------------

    async def tokenize(self, exchange: Exchange) -> Reply:
        """POST /tokenize."""
        order = await self._read(exchange, read_tokenize, TokenizeBody)
        self._models.resolve(order.model)
        async with ClientWatch(exchange, self._watches):
            ids = await self._tokenize(order.prompt)
        return _json(tokenize_answer(ids, self._models.max_model_len))

    async def _tokenize(self, prompt: Prompt) -> list[int]:
        return await self._backend.tokenize(prompt, timeout_s=self._limits.tokenize_timeout_s)

    async def detokenize(self, exchange: Exchange) -> Reply:
        """POST /detokenize."""
        order = await self._read(exchange, read_detokenize, DetokenizeBody)
        self._models.resolve(order.model)
        return _json(detokenize_answer(self._vocabulary.decode(order.ids, False)))

    # --- facts ----------------------------------------------------------------------------------

    async def list_models(self, _: Exchange) -> Reply:
        """GET /v1/models."""
        models = self._models
        return _json(models_answer(models.names, models.created, models.max_model_len))

    async def show_model(self, exchange: Exchange) -> Reply:
        """GET /v1/models/NAME."""
        models = self._models
        name = models.resolve(exchange.path.removeprefix(_MODELS_PATH))
        return _json(model_answer(name, models.created, models.max_model_len))

    async def openapi(self, _: Exchange) -> Reply:
        """GET /openapi.json."""
        return _json(self._description)

    @functools.cached_property
    def _description(self) -> bytes:
        return openapi(
            self._models, self._limits.request, needs_key=self._needs_key, routes=self._routes
        )

    async def version(self, _: Exchange) -> Reply:
        """GET /version."""
        return _json(msgspec.json.encode({"version": __version__}))

    async def ps(self, _: Exchange) -> Reply:
        """GET /ps."""
        return _json(msgspec.json.encode(process_facts(await self._backend.ps())))

    async def live(self, _: Exchange) -> Reply:
        """GET /health/live."""
        return self._health.live()

    async def ready(self, _: Exchange) -> Reply:
        """GET /health and /health/ready."""
        return await self._health.ready()

    async def started(self, _: Exchange) -> Reply:
        """GET /health/startup."""
        return await self._health.started()

    # --------------------------------------------------------------------------------------------

    async def _read(
        self,
        exchange: Exchange,
        read: Callable[[bytes, RequestLimits], Order],
        shape: type[msgspec.Struct],
    ) -> Order:
        await self._health.check_started()
        with self._bodies.share() as share:
            body = await read_body(exchange, share, self._limits, self._body_time)
            if self._limits.is_lenient:
                body, ignored = without_unknown_keys(body, shape)
                exchange.extra_headers += [ignored_header(ignored)] if ignored else []
            order = read(body, self._limits.request)
        self._health.check_accepting()  # it may have changed while the body came in
        return order


async def _results(streams: list[BackendStream]) -> list[RequestOutput]:
    if len(streams) == 1:  # as most are: no task of its own
        return [await streams[0].result()]
    return await asyncio.gather(*(stream.result() for stream in streams))


def _json(body: bytes) -> Reply:
    return Reply(200, [JSON_TYPE], body)
