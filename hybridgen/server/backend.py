"""What the front door needs of an ``AsyncClient``."""

from __future__ import annotations

from typing import Protocol

from hybridgen.client.chunk import StreamChunk
from hybridgen.messages import HealthReport, ProcessList
from hybridgen.request import PromptLike, RequestOutput, SamplingParams


class BackendStream(Protocol):
    """A running request, as ``AsyncStream``: chunks, then its result, once."""

    @property
    def ended(self) -> object | None:
        """How, though not all of it may have been read; None while it runs."""

    async def __anext__(self) -> StreamChunk:
        """The next chunk; ``StopAsyncIteration`` or a typed error at the end."""

    async def result(self) -> RequestOutput:
        """Wait for the end; the whole request, or the typed error that ended it."""

    def close(self) -> None:
        """Cancel what still runs; safe to repeat."""


class Backend(Protocol):
    """Serves requests."""

    def submit(
        self,
        prompt: PromptLike,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        traceparent: str = "",
    ) -> BackendStream:
        """Begin a request."""

    async def tokenize(self, prompt: PromptLike, *, timeout_s: float | None = None) -> list[int]:
        """The ids of a prompt."""

    async def health(self, *, timeout_s: float | None = None) -> HealthReport:
        """Whether requests can be served."""

    async def ps(self, *, timeout_s: float | None = None) -> ProcessList:
        """The process tree."""
