"""Streams over HTTP that write down what they see. HTTP/1.0: a body is what comes until the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from hybridgen.launch.chaos.history import Outcome, Piece, Question, Record
from hybridgen.launch.chaos.load import TIMEOUT_S

HOST = "127.0.0.1"
#: Codes of outcomes that no server gave.
RESET, REFUSED = "reset", "refused"
_MAX_LINE = 1 << 20


class HttpLoad:
    """Some HTTP streams at once, as ``Load``.

    Attributes:
        records: every request so far.
        may_ask: cleared, streams ask nothing new.
        num_refused: connections that the kernel refused.
    """

    def __init__(self, port: int, questions: Sequence[Question], num_streams: int) -> None:
        self.records: list[Record] = []
        self.may_ask = asyncio.Event()
        self.num_refused = 0
        self._port = port
        self._questions = questions
        self._is_over = False
        self._num_streams = num_streams
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let all streams ask from now on."""
        self.may_ask.set()
        self._tasks = [
            asyncio.create_task(self._stream(number)) for number in range(self._num_streams)
        ]

    async def finish(self) -> None:
        """Ask nothing new and wait for what is open."""
        self._is_over = True
        self.may_ask.set()
        _, late = await asyncio.wait(self._tasks, timeout=TIMEOUT_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def is_answered(self) -> bool:
        """Whether the gateway says that a request would be served."""
        try:
            return b" 200 " in await status_of("GET /health", self._port)
        except ConnectionRefusedError:
            self.num_refused += 1
            return False
        except OSError:
            return False  # reset: it was with the gateway that died

    async def _stream(self, number: int) -> None:
        question = number
        while not self._is_over:
            await self.may_ask.wait()
            if not self._is_over:
                await self._ask(question)
            question = (question + self._num_streams) % len(self._questions)

    async def _ask(self, number: int) -> None:
        now_s = time.monotonic()
        record = Record(number, now_s, now_s + TIMEOUT_S, has_ids=False)
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port, limit=_MAX_LINE)
        except ConnectionRefusedError:
            self.num_refused += 1
            await asyncio.sleep(0.01)
            return
        self.records.append(record)
        try:
            writer.write(_request(self._questions[number], self._port))
            await self._read(reader, record)
        except OSError:
            pass  # no outcome yet: it was cut
        finally:
            writer.close()
        if not record.outcomes:
            record.outcomes.append(Outcome(time.monotonic(), error=RESET))

    async def _read(self, reader: asyncio.StreamReader, record: Record) -> None:
        """Status, headers, events. An end without the last event leaves no outcome."""
        status = await reader.readline()
        if b" 200 " not in status:
            code = status.split(b" ", 2)[1].decode() if status.count(b" ") > 1 else RESET
            record.outcomes.append(Outcome(time.monotonic(), error=code))
            return
        finish_reason = ""
        usage: dict[str, int] = {}
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                record.outcomes.append(
                    Outcome(
                        time.monotonic(),
                        finish_reason=finish_reason,
                        num_tokens=usage.get("completion_tokens", 0),
                        num_prompt_tokens=usage.get("prompt_tokens", 0),
                    )
                )
            elif line.startswith(b"data: ") and line.endswith(b"\n"):
                event: dict[str, Any] = msgspec.json.decode(line[6:])
                usage = event.get("usage") or usage
                for choice in event.get("choices", ()):
                    finish_reason = choice["finish_reason"] or finish_reason
                    if choice["text"]:
                        record.pieces.append(Piece(time.monotonic(), choice["text"]))


async def status_of(request: str, port: int) -> bytes:
    """The status line of the answer to a request without a body; empty when it was cut.

    Args:
        request: method and path.
        port: of the gateway.

    Raises:
        OSError: nobody accepts, or the connection is reset.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        head = f"{request} HTTP/1.0\r\nhost: {HOST}:{port}\r\ncontent-length: 0\r\n\r\n"
        writer.write(head.encode())
        return await reader.readline()
    finally:
        writer.close()


def _request(question: Question, port: int) -> bytes:
    params = question.params
    body = msgspec.json.encode(
        {
            "prompt": question.prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "repetition_penalty": params.repetition_penalty,
            "seed": params.seed,
            "max_tokens": params.max_tokens,
            "min_tokens": params.min_tokens,
        }
    )
    head = (
        f"POST /v1/completions HTTP/1.0\r\nhost: {HOST}:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
