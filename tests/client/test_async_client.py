from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from hybridgen.client.async_client import AsyncClient
from hybridgen.client.async_stream import AsyncStream
from hybridgen.client.limits import ClientLimits
from hybridgen.errors import (
    Cancelled,
    ChannelTimeout,
    HybridGenError,
    InvalidRequest,
    PeerGone,
    QueueFull,
)
from hybridgen.messages import SubmitRequest
from hybridgen.request import SamplingParams, TextPrompt
from tests.support.fake_server import FakeServer, golden_of

GOLDEN = golden_of(TextPrompt("tree"))
QUICK = ClientLimits(answer_timeout_s=0.3, resend_s=0.1, close_timeout_s=0.1)


@pytest.fixture(scope="session", autouse=True)
def _uvloop_pipe() -> None:
    """libuv opens a pipe for signals once per process and keeps it: no leak of a test."""
    uvloop.run(asyncio.sleep(0))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "run") as server:
        yield server


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[FakeServer]:
    """A server that holds every text after four tokens."""
    with FakeServer(tmp_path / "run", gate=4) as server:
        yield server


def run_with(
    server: FakeServer, body: Callable[[AsyncClient], Awaitable[None]], **options: ClientLimits
) -> None:
    async def main() -> None:
        async with AsyncClient(server.uri, **options) as client:
            await asyncio.wait_for(body(client), 20.0)

    asyncio.run(main())


async def until(predicate: Callable[[], object]) -> None:
    """As ``eventually``, for a predicate that needs the loop to go on meanwhile."""
    async with asyncio.timeout(5.0):
        while not predicate():
            await asyncio.sleep(0.001)


async def read_tokens(stream: AsyncStream, num_tokens: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < num_tokens:
        ids += (await anext(stream)).token_ids
    return ids


def test_a_stream_yields_chunks_that_join_to_the_text(server: FakeServer) -> None:
    async def body(client: AsyncClient) -> None:
        async with client.submit("tree") as stream:
            chunks = [chunk async for chunk in stream]
        assert "".join(chunk.text for chunk in chunks) == GOLDEN.text
        assert [i for chunk in chunks for i in chunk.token_ids] == GOLDEN.ids

    run_with(server, body)


def test_a_stream_can_be_awaited_after_a_partial_read(server: FakeServer) -> None:
    async def body(client: AsyncClient) -> None:
        stream = client.submit("tree")
        await anext(stream)
        output = await stream
        assert (output.text, output.token_ids) == (GOLDEN.text, GOLDEN.ids)
        assert await stream.result() == output

    run_with(server, body)


def test_questions_are_answered_and_their_errors_raised(server: FakeServer) -> None:
    async def body(client: AsyncClient) -> None:
        assert await client.tokenize("some text") == [1, 2, 3]
        assert (await client.health()).is_ready
        assert (await client.ps()).instance == "fake"
        with pytest.raises(InvalidRequest, match="ids already"):
            await client.tokenize([1])
        await client.stop()

    run_with(server, body)
    assert server.num_stops == 1


def test_a_rejection_is_raised_as_its_class(tmp_path: Path) -> None:
    def reject(_: SubmitRequest) -> HybridGenError:
        return QueueFull("the backlog is full", retry_after_s=1.5)

    async def body(client: AsyncClient) -> None:
        with pytest.raises(QueueFull):
            await client.generate("tree")
        with pytest.raises(QueueFull):
            await anext(client.submit("tree"))
        with pytest.raises(InvalidRequest, match="top_p"):
            client.submit("tree", SamplingParams(top_p=7.0))
        with pytest.raises(InvalidRequest, match="too large"):
            await client.generate("x" * (34 * 1024 * 1024))

    with FakeServer(tmp_path / "run", reject=reject) as server:
        run_with(server, body)


@pytest.mark.parametrize("socket", ["text-0", "clients"])
def test_a_stream_goes_on_after_a_socket_was_replaced(gated: FakeServer, socket: str) -> None:
    async def body(client: AsyncClient) -> None:
        async with client.submit("tree") as stream:
            assert await read_tokens(stream, 4) == GOLDEN.ids[:4]
            gated.replace(socket)
            gated.open_gate()
            output = await stream
        assert (output.text, output.token_ids) == (GOLDEN.text, GOLDEN.ids)

    run_with(gated, body)


def test_leaving_the_stream_or_cancelling_the_task_cancels_the_request(gated: FakeServer) -> None:
    async def body(client: AsyncClient) -> None:
        async with client.submit("tree") as stream:
            await read_tokens(stream, 4)
        await until(lambda: len(gated.cancelled) == 1 and gated.requests == {})
        task = asyncio.create_task(client.generate("oak"))
        await until(lambda: len(gated.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(gated.cancelled) == 2 and gated.requests == {})

    run_with(gated, body)


def test_a_closed_stream_keeps_nobody_waiting(gated: FakeServer) -> None:
    async def body(client: AsyncClient) -> None:
        stream = client.submit("tree")
        await read_tokens(stream, 4)
        waiting = asyncio.create_task(stream.result())
        await asyncio.wait({waiting}, timeout=0)
        stream.close()
        with pytest.raises(Cancelled, match="closed"):
            await asyncio.wait_for(waiting, 5.0)

    run_with(gated, body)


def test_cancel_ends_the_stream_with_the_text_so_far(gated: FakeServer) -> None:
    async def body(client: AsyncClient) -> None:
        stream = client.submit("tree")
        await read_tokens(stream, 4)
        stream.cancel()
        output = await stream
        assert (output.finish_reason, output.token_ids) == ("cancelled", GOLDEN.ids[:4])

    run_with(gated, body)


def test_closing_the_client_cancels_what_is_open_and_wakes_its_readers(gated: FakeServer) -> None:
    async def main() -> None:
        client = AsyncClient(gated.uri)
        tasks = [asyncio.create_task(client.generate(f"tree{index}")) for index in range(3)]
        await until(lambda: len(gated.requests) == 3)
        await client.close()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, Cancelled)
        await client.close()
        with pytest.raises(PeerGone, match="closed"):
            client.submit("tree")

    asyncio.run(main())
    assert len(gated.cancelled) == 3


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("socket", [None, "text-0", "clients"])
def test_64_streams_of_64_tasks_are_whole(
    tmp_path: Path, socket: str | None, runner: Callable[..., None]
) -> None:
    words = [f"stream{index:02d}-" for index in range(64)]

    async def main(server: FakeServer) -> None:
        async with AsyncClient(server.uri) as client, asyncio.timeout(20.0):
            tasks = [asyncio.create_task(client.generate(word)) for word in words]
            await until(lambda: len(server.requests) == 64)
            if socket is not None:
                server.replace(socket)
            server.open_gate()
            outputs = await asyncio.gather(*tasks)
            assert [o.text for o in outputs] == [golden_of(TextPrompt(w)).text for w in words]
        assert server.requests == {}

    with FakeServer(tmp_path / "run", gate=5) as server:
        runner(main(server))


def test_a_mute_server_is_a_timeout_and_an_absent_one_peer_gone(tmp_path: Path) -> None:
    async def mute(client: AsyncClient) -> None:
        assert (await client.health()).is_ready
        server.is_silent = True
        with pytest.raises(ChannelTimeout):
            await client.generate("tree")

    with FakeServer(tmp_path / "run") as server:
        run_with(server, mute, limits=QUICK)

    async def absent() -> None:
        async with AsyncClient(empty, limits=QUICK) as client:
            with pytest.raises(PeerGone):
                await client.generate("tree")
            with pytest.raises(PeerGone):
                await client.ps(timeout_s=0.05)

    empty = tmp_path / "empty"
    empty.mkdir(mode=0o700)
    asyncio.run(absent())


def test_only_a_trusting_client_sends_what_it_has_not_checked(server: FakeServer) -> None:
    unchecked = SamplingParams(top_k=-7, max_tokens=1)

    async def scene(client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match="top_k"):
            client.submit("tree", unchecked)
        async with AsyncClient(server.uri, is_trusting=True) as trusting:
            output = await trusting.submit("tree", unchecked).result()
        assert len(output.token_ids) == 1

    run_with(server, scene)


def test_a_stream_read_by_two_tasks_says_so(gated: FakeServer) -> None:
    async def body(client: AsyncClient) -> None:
        stream = client.submit("tree")
        await read_tokens(stream, 4)
        first = asyncio.create_task(stream.result())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one task at a time"):
            await stream.result()
        gated.open_gate()
        assert (await first).text == GOLDEN.text

    run_with(gated, body)


def test_the_clients_of_a_broken_task_are_told(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        reported: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
        client = AsyncClient(server.uri)
        assert (await client.health()).is_ready

        def fail(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr("hybridgen.client.session.Session.received", fail)
        with pytest.raises(HybridGenError, match="a bug"):
            await client.health()
        assert reported == ["a task of an AsyncClient failed"]
        await client.close()

    asyncio.run(main())
