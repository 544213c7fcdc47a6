"""The client for asyncio."""

from __future__ import annotations

import os
from functools import partial

from hybridgen.client.address import Address
from hybridgen.client.async_pump import AsyncPump
from hybridgen.client.async_stream import AsyncStream
from hybridgen.client.limits import ADMIN_TIMEOUT_S, ClientLimits
from hybridgen.client.order import checked_params, checked_prompt, checked_traceparent
from hybridgen.client.peer import ADMIN, COSCHEDULER
from hybridgen.errors import PeerGone
from hybridgen.messages import (
    HealthReport,
    ListProcesses,
    ProcessList,
    PromptTokenized,
    QueryHealth,
    StopTree,
    TokenizePrompt,
)
from hybridgen.request import (
    PromptLike,
    RequestOutput,
    SamplingParams,
    as_prompt,
    check_timeout,
)


class AsyncClient:
    """Speaks to a running tree from one event loop; any number of its tasks may share one.

    ::

        async with AsyncClient("hybridgen:///run/user/1000/hybridgen-…") as client:
            async with client.submit("Once upon a time", SamplingParams(max_tokens=32)) as stream:
                async for chunk in stream:
                    print(chunk.text, end="", flush=True)

    Streams survive the death of any process on the other side. Every error is raised in the
    task that waits, as its own class of ``hybridgen.errors``.

    Args:
        target: ``hybridgen://…`` (the server's banner, or its ``--uri-file``), or the runtime
            directory. Connected on first use.
        limits: time limits.
        prefix: what the identity begins with by which the server knows this client.
        is_trusting: what is submitted is not checked, for an owner that has done so.

    Raises:
        PeerGone: there is no such directory.
        ConfigError: the address cannot be read.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        limits: ClientLimits | None = None,
        prefix: bytes = b"c",
        is_trusting: bool = False,
    ) -> None:
        self._address = Address(target, prefix)
        self._limits = limits or ClientLimits()
        self._started: AsyncPump | None = None
        self._is_trusting = is_trusting
        self._is_closed = False

    def submit(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        traceparent: str = "",
    ) -> AsyncStream:
        """Begin a request; returns at once, needs the running loop.

        Args:
            prompt: a text, token ids, messages, or a ``ChatPrompt`` with tools.
            params: how to sample; ``None`` takes the defaults.
            timeout_s: deadline of the whole request; ``None`` takes the server's.
            priority: higher goes first among waiting requests.
            traceparent: the caller's W3C trace context, for the server's logs and spans.

        Raises:
            InvalidRequest: a parameter is out of range (checked here), or the prompt is none.
            PeerGone: the client is closed.
        """
        if self._is_trusting:
            wanted, params = as_prompt(prompt), params or SamplingParams()
        else:
            wanted, params = checked_prompt(prompt), checked_params(params)
            check_timeout(timeout_s)
            checked_traceparent(traceparent)
        pump = self._pump()
        request_id = b""
        stream = AsyncStream(
            wanted,
            cancel=lambda: pump.cancel(request_id),
            abandon=lambda: pump.abandon(request_id),
        )
        request_id = pump.submit(
            wanted,
            params,
            stream,
            timeout_s=timeout_s,
            priority=priority,
            traceparent=traceparent,
        )
        return stream

    async def generate(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> RequestOutput:
        """Run a request to its end; an interrupted wait cancels it.

        Raises:
            HybridGenError: the typed error that ended it.
        """
        async with self.submit(prompt, params, timeout_s=timeout_s, priority=priority) as stream:
            return await stream.result()

    async def tokenize(self, prompt: PromptLike, *, timeout_s: float | None = None) -> list[int]:
        """The token ids that the server would make of ``prompt``.

        Raises:
            HybridGenError: the prompt cannot be encoded, or no answer came in time.
        """
        question = partial(TokenizePrompt, prompt=checked_prompt(prompt))
        answer: PromptTokenized = await self._pump().ask(COSCHEDULER, question, timeout_s)
        return answer.ids

    async def health(self, *, timeout_s: float | None = None) -> HealthReport:
        """Whether the tree can serve, with a few figures."""
        report: HealthReport = await self._pump().ask(COSCHEDULER, QueryHealth, timeout_s)
        return report

    async def ps(self, *, timeout_s: float | None = ADMIN_TIMEOUT_S) -> ProcessList:
        """The process tree as its supervisor sees it."""
        processes: ProcessList = await self._pump().ask(ADMIN, ListProcesses, timeout_s)
        return processes

    async def stop(
        self, drain_timeout_s: float | None = None, *, timeout_s: float | None = ADMIN_TIMEOUT_S
    ) -> None:
        """Ask the tree to drain and exit; returns once the supervisor has agreed.

        Args:
            drain_timeout_s: how long running requests may take; ``None`` takes the server's.
            timeout_s: how long to wait for the answer.
        """
        await self._pump().ask(ADMIN, partial(StopTree, timeout_s=drain_timeout_s), timeout_s)

    async def close(self) -> None:
        """Cancel what is open and disconnect; safe to repeat."""
        self._is_closed = True
        if self._started is not None:
            await self._started.close()

    async def __aenter__(self) -> AsyncClient:
        self._pump()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _pump(self) -> AsyncPump:
        if self._is_closed:
            raise PeerGone("this client is closed", remedy="Make a new one")
        if self._started is None:
            self._started = AsyncPump(self._address, self._limits)
        return self._started
