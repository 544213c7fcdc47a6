"""The gateway's application over streams that are never waited for, behind the real HTTP server.

python -m tools.http_source PORT NUM_PIECES
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvloop

from hybridgen.client.chunk import StreamChunk
from hybridgen.config import HttpSection
from hybridgen.errors import PeerGone
from hybridgen.messages import HealthReport, ProcessList
from hybridgen.request import PromptLike, RequestOutput, SamplingParams
from hybridgen.server.app import App
from hybridgen.server.served_models import ServedModels
from hybridgen.text.vocabulary import Vocabulary
from hybridgen.workers.http_server import HttpServer

_CHUNK = StreamChunk(" word", [5])


class EagerStream:
    """Has its next piece at any time."""

    def __init__(self, num_pieces: int) -> None:
        self._num_left = num_pieces
        self._output = RequestOutput(
            num_prompt_tokens=1,
            token_ids=[5] * num_pieces,
            text=" word" * num_pieces,
            finish_reason="length",
            seed=0,
        )

    async def __anext__(self) -> StreamChunk:
        if not self._num_left:
            raise StopAsyncIteration
        self._num_left -= 1
        return _CHUNK

    async def result(self) -> RequestOutput:
        """The whole of it."""
        return self._output

    def close(self) -> None:
        """Nothing runs."""


class EagerBackend:
    """Begins such streams."""

    def __init__(self, num_pieces: int) -> None:
        self._num_pieces = num_pieces

    def submit(
        self,
        prompt: PromptLike,  # noqa: ARG002  # the answer is always the same
        params: SamplingParams | None = None,  # noqa: ARG002
        *,
        timeout_s: float | None = None,  # noqa: ARG002
        priority: int = 0,  # noqa: ARG002
        traceparent: str = "",  # noqa: ARG002
    ) -> EagerStream:
        """Begin a stream."""
        return EagerStream(self._num_pieces)

    async def tokenize(self, prompt: PromptLike, *, timeout_s: float | None = None) -> list[int]:  # noqa: ARG002
        """Never the same as the prompt."""
        return [5]

    async def health(self, *, timeout_s: float | None = None) -> HealthReport:  # noqa: ARG002
        """Always well."""
        return HealthReport(request_id=b"", is_ready=True, status="ready")

    async def ps(self, *, timeout_s: float | None = None) -> ProcessList:
        """There is no tree.

        Raises:
            PeerGone: always.
        """
        raise PeerGone("there is no tree", value=timeout_s)


async def serve(port: int, num_pieces: int) -> None:
    """Until the process is ended."""
    models = ServedModels(names=("mock",), created=0, max_model_len=2048)
    app = App(EagerBackend(num_pieces), models, Vocabulary([b" word"] * 8))
    listener = socket.create_server(("127.0.0.1", port))
    server = HttpServer(app, HttpSection(port=port), listener.detach())
    server.start()
    await server.wait_failed()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1]), int(sys.argv[2])))
