from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hybridgen.launch.chaos.history import Outcome, Question, Record
from hybridgen.launch.chaos.http_load import RESET, HttpLoad
from hybridgen.launch.chaos.own_tree import free_port
from hybridgen.request import SamplingParams

QUESTION = Question("Who?", SamplingParams(temperature=0.0, max_tokens=2))
HEAD = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
TEXTS = (
    b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
    b'data: {"choices":[{"text":" b","finish_reason":"length"}]}\n\n'
)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answered_with(*parts: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.writelines(parts)
        await writer.drain()

    return answer


def first_record(answer: Answer) -> Record:
    """What a client of a server that answers like this writes down about its first request."""

    async def run() -> Record:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            load = HttpLoad(server.sockets[0].getsockname()[1], [QUESTION], 1)
            load.start()
            while not (load.records and load.records[0].outcomes):
                await asyncio.sleep(0)
            await load.finish()
        return load.records[0]

    return asyncio.run(run())


def without_time(outcome: Outcome) -> tuple[str, int, int, str]:
    return outcome.finish_reason, outcome.num_tokens, outcome.num_prompt_tokens, outcome.error


def test_a_whole_stream_is_written_down() -> None:
    record = first_record(answered_with(HEAD, TEXTS, USAGE, b"data: [DONE]\n\n"))
    assert record.text == "a b"
    assert [without_time(outcome) for outcome in record.outcomes] == [("length", 2, 3, "")]


def test_a_stream_that_breaks_off_was_reset() -> None:
    record = first_record(answered_with(HEAD, TEXTS, b'data: {"choi'))
    assert record.text == "a b"
    assert [without_time(outcome) for outcome in record.outcomes] == [("", 0, 0, RESET)]


def test_a_refusal_keeps_its_status() -> None:
    record = first_record(answered_with(b"HTTP/1.0 503 Busy\r\n\r\n"))
    assert [outcome.error for outcome in record.outcomes] == ["503"]


def test_refused_connections_are_counted_and_are_no_requests() -> None:
    async def run() -> HttpLoad:
        load = HttpLoad(free_port(), [QUESTION], 1)
        assert not await load.is_answered()
        return load

    load = asyncio.run(run())
    assert (load.num_refused, load.records) == (1, [])
