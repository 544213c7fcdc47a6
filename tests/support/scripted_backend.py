"""A backend whose streams follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hybridgen.client.chunk import StreamChunk
from hybridgen.errors import Cancelled
from hybridgen.messages import HealthReport, ProcessInfo, ProcessList
from hybridgen.request import Prompt, PromptLike, RequestOutput, SamplingParams, as_prompt

#: A chunk, an error that ends the stream, or an event to wait for.
Step = StreamChunk | Exception | asyncio.Event

NUM_PROMPT_TOKENS = 3
READY = HealthReport(request_id=b"r", is_ready=True, status="ready", num_running=1)
LOADING = HealthReport(request_id=b"r", is_ready=False, status="loading")


def chunks(*texts: str) -> list[Step]:
    """One chunk of one token per text."""
    return [StreamChunk(text, [index]) for index, text in enumerate(texts)]


class ScriptedStream:
    """Plays one script, then ends."""

    def __init__(
        self, prompt: Prompt, params: SamplingParams, script: Sequence[Step], finish_reason: str
    ) -> None:
        self.prompt = prompt
        self.params = params
        self.num_closed = 0
        self._script = list(script)
        self._finish_reason = finish_reason
        self._taken: list[StreamChunk] = []
        self._closed = asyncio.Event()

    @property
    def num_steps_left(self) -> int:
        """How much of the script nobody has asked for."""
        return len(self._script)

    @property
    def ended(self) -> str | None:
        """How; None while there is more to play."""
        return None if self._script else self._finish_reason

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> StreamChunk:
        while self._script:
            if self._closed.is_set():
                raise Cancelled("the stream was closed")
            step = self._script[0]
            if isinstance(step, asyncio.Event):
                await step.wait()
                self._script.pop(0)
                continue
            self._script.pop(0)
            if isinstance(step, Exception):
                raise step
            self._taken.append(step)
            return step
        raise StopAsyncIteration

    async def result(self) -> RequestOutput:
        async for _ in self:
            pass
        return RequestOutput(
            num_prompt_tokens=NUM_PROMPT_TOKENS,
            token_ids=[i for chunk in self._taken for i in chunk.token_ids],
            text="".join(chunk.text for chunk in self._taken),
            finish_reason=self._finish_reason,
            seed=0,
        )

    def close(self) -> None:
        self.num_closed += 1
        self._closed.set()


class ScriptedBackend:
    """Gives the i-th request the i-th script, and the last one to all further requests."""

    def __init__(self, *scripts: Sequence[Step], finish_reason: str = "stop") -> None:
        self._scripts = scripts or (chunks("Hello", " world"),)
        self._finish_reason = finish_reason
        self.streams: list[ScriptedStream] = []
        self.priorities: list[int] = []
        self.traceparents: list[str] = []
        self.report: HealthReport | Exception = READY
        self.num_health_questions = 0
        self.health_gate: asyncio.Event | None = None
        self.tokenize_gate: asyncio.Event | None = None

    def submit(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,  # noqa: ARG002  # the server's deadline holds
        priority: int = 0,
        traceparent: str = "",
    ) -> ScriptedStream:
        script = self._scripts[min(len(self.streams), len(self._scripts) - 1)]
        wanted = params or SamplingParams()
        stream = ScriptedStream(as_prompt(prompt), wanted, script, self._finish_reason)
        self.streams.append(stream)
        self.priorities.append(priority)
        self.traceparents.append(traceparent)
        return stream

    async def tokenize(
        self,
        prompt: PromptLike,  # noqa: ARG002  # every prompt has the same ids
        *,
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> list[int]:
        if self.tokenize_gate is not None:
            await self.tokenize_gate.wait()
        return [1, 2, 3]

    async def health(self, *, timeout_s: float | None = None) -> HealthReport:  # noqa: ARG002
        self.num_health_questions += 1
        if self.health_gate is not None:
            await self.health_gate.wait()
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    async def ps(self, *, timeout_s: float | None = None) -> ProcessList:  # noqa: ARG002
        process = ProcessInfo(
            name="gpu-0",
            role="gpu",
            index=0,
            pid=42,
            incarnation=0,
            state="ready",
            restarts=0,
            cpus=[0],
            rss_bytes=1,
            progress=7,
        )
        return ProcessList(
            request_id=b"r",
            instance="abcd",
            model="demo",
            device="cpu",
            uptime_s=1.0,
            is_ready=True,
            shm_bytes=1,
            processes=[process],
        )
