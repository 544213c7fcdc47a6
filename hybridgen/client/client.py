"""The client for threads."""

from __future__ import annotations

import os
from functools import partial
from queue import SimpleQueue

from hybridgen.client.address import Address
from hybridgen.client.limits import ADMIN_TIMEOUT_S, ClientLimits
from hybridgen.client.order import checked_params, checked_prompt, checked_traceparent
from hybridgen.client.peer import ADMIN, COSCHEDULER
from hybridgen.client.pump import Pump
from hybridgen.client.sink import Completion, Sink
from hybridgen.client.stream import Stream
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


class Client:
    """Speaks to a running tree; any number of threads may share one.

    ::

        with Client("hybridgen:///run/user/1000/hybridgen-…") as client:
            with client.submit("Once upon a time", SamplingParams(max_tokens=32)) as stream:
                for chunk in stream:
                    print(chunk.text, end="", flush=True)

    Streams survive the death of any process on the other side. Every error is raised in the
    calling thread, as its own class of ``hybridgen.errors``.

    Args:
        target: ``hybridgen://…`` (the server's banner, or its ``--uri-file``), or the runtime
            directory.
        limits: time limits.

    Raises:
        PeerGone: there is no such directory.
        ConfigError: the address cannot be read.
    """

    def __init__(
        self, target: str | os.PathLike[str], *, limits: ClientLimits | None = None
    ) -> None:
        self._pump = Pump(Address(target), limits or ClientLimits())

    def submit(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        traceparent: str = "",
    ) -> Stream:
        """Begin a request and return at once.

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
        wanted = as_prompt(prompt)
        request_id = b""
        stream = Stream(
            wanted,
            cancel=lambda: self._pump.cancel(request_id),
            abandon=lambda: self._pump.abandon(request_id),
        )
        request_id = self.submit_to(
            stream,
            wanted,
            params,
            timeout_s=timeout_s,
            priority=priority,
            traceparent=traceparent,
        )
        return stream

    def submit_to(
        self,
        sink: Sink,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        traceparent: str = "",
    ) -> bytes:
        """Begin a request whose events go to ``sink`` (called in the client's own thread).

        Returns:
            The request id, for ``abandon``.
        """
        check_timeout(timeout_s)
        return self._pump.submit(
            checked_prompt(prompt),
            checked_params(params),
            sink,
            timeout_s=timeout_s,
            priority=priority,
            traceparent=checked_traceparent(traceparent),
        )

    def abandon(self, request_id: bytes) -> None:
        """Cancel a request of ``submit_to``; its sink hears nothing more."""
        self._pump.abandon(request_id)

    def generate(
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
        wanted = as_prompt(prompt)
        done: SimpleQueue[Completion] = SimpleQueue()
        request_id = self.submit_to(
            Completion(wanted, done), wanted, params, timeout_s=timeout_s, priority=priority
        )
        try:
            return done.get().result()
        finally:
            self.abandon(request_id)

    def tokenize(self, prompt: PromptLike, *, timeout_s: float | None = None) -> list[int]:
        """The token ids that the server would make of ``prompt``.

        Raises:
            HybridGenError: the prompt cannot be encoded, or no answer came in time.
        """
        question = partial(TokenizePrompt, prompt=checked_prompt(prompt))
        answer: PromptTokenized = self._pump.ask(COSCHEDULER, question, timeout_s)
        return answer.ids

    def health(self, *, timeout_s: float | None = None) -> HealthReport:
        """Whether the tree can serve, with a few figures."""
        report: HealthReport = self._pump.ask(COSCHEDULER, QueryHealth, timeout_s)
        return report

    def ps(self, *, timeout_s: float | None = ADMIN_TIMEOUT_S) -> ProcessList:
        """The process tree as its supervisor sees it."""
        processes: ProcessList = self._pump.ask(ADMIN, ListProcesses, timeout_s)
        return processes

    def stop(
        self, drain_timeout_s: float | None = None, *, timeout_s: float | None = ADMIN_TIMEOUT_S
    ) -> None:
        """Ask the tree to drain and exit; returns once the supervisor has agreed.

        Args:
            drain_timeout_s: how long running requests may take; ``None`` takes the server's.
            timeout_s: how long to wait for the answer.
        """
        self._pump.ask(ADMIN, partial(StopTree, timeout_s=drain_timeout_s), timeout_s)

    def close(self) -> None:
        """Cancel what is open and disconnect; safe to repeat."""
        self._pump.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
