"""A link on an event loop against a plain router."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hybridgen.client.address import Address
from hybridgen.client.async_link import AsyncLink
from hybridgen.client.peer import COSCHEDULER, Peer
from hybridgen.errors import InvalidRequest
from hybridgen.ipc.channel import Router
from hybridgen.ipc.runtime_dir import RuntimeDir
from hybridgen.ipc.zmq_options import HIGH_WATER, MAX_CLIENT_FRAME_BYTES
from hybridgen.messages import (
    ClientOrder,
    Decoder,
    QueryHealth,
    RequestAccepted,
    SubscribeText,
    TokenizePrompt,
)
from hybridgen.request import TextPrompt

ORDERS = Decoder(ClientOrder)
LIMIT_S = 10.0
#: More than one turn of the loop takes.
NUM_ANSWERS = 200
#: More than the queues of both ends hold.
NUM_MANY = 3 * HIGH_WATER


@pytest.fixture
def address() -> Iterator[Address]:
    with tempfile.TemporaryDirectory(prefix="hg") as path:
        runtime = RuntimeDir.create(Path(path) / "rt", "link")
        yield Address(runtime.uri)
        runtime.remove()


class Heard:
    """Everything that a link tells."""

    def __init__(self, on_message: Callable[[Any], None] | None = None) -> None:
        self.num_connections = 0
        self.messages: list[Any] = []
        self.refused: list[tuple[Any, InvalidRequest]] = []
        self.errors: list[BaseException] = []
        self._listener = on_message

    def link(self, address: Address) -> AsyncLink:
        return AsyncLink(
            COSCHEDULER,
            address,
            on_connect=self._connected,
            on_message=self._received,
            on_refused=lambda message, error: self.refused.append((message, error)),
            on_broken=self.errors.append,
        )

    def _connected(self, peer: Peer) -> None:
        assert peer == COSCHEDULER
        self.num_connections += 1

    def _received(self, peer: Peer, message: Any) -> None:
        assert peer == COSCHEDULER
        self.messages.append(message)
        if self._listener is not None:
            self._listener(message)


def router(address: Address) -> closing[Router]:
    return closing(Router([address.endpoint(COSCHEDULER)], ORDERS))


async def until(predicate: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not predicate():
            await asyncio.sleep(0.001)


async def orders(router: Router, num: int) -> list[Any]:
    taken: list[Any] = []

    def take() -> bool:
        while (received := router.receive()) is not None:
            taken.append(received[1])
        return len(taken) >= num

    await until(take)
    return taken


def asked(n: int) -> QueryHealth:
    return QueryHealth(b"q%d" % n)


def accepted(n: int) -> RequestAccepted:
    return RequestAccepted(b"r", n, 0)


def test_what_was_sent_before_there_is_anybody_arrives_in_order(address: Address) -> None:
    async def scenario() -> None:
        heard = Heard()
        with closing(heard.link(address)) as link:
            for n in range(NUM_MANY):
                link.send(asked(n))
            await asyncio.sleep(0)
            with router(address) as server:
                assert await orders(server, NUM_MANY) == [asked(n) for n in range(NUM_MANY)]

    asyncio.run(scenario())


def test_each_new_connection_is_told_and_serves(address: Address) -> None:
    async def scenario() -> None:
        heard = Heard()
        with closing(heard.link(address)) as link:
            for n in (1, 2):
                with router(address) as server:
                    await until(lambda n=n: heard.num_connections == n)
                    link.send(asked(n))
                    assert await orders(server, 1) == [asked(n)]
                    server.send(address.identity, accepted(n))
                    await until(lambda n=n: heard.messages[-1:] == [accepted(n)])

    asyncio.run(scenario())


def test_many_answers_at_once_all_arrive_and_let_others_have_their_turn(address: Address) -> None:
    async def scenario() -> None:
        turns = 0
        heard = Heard()
        with closing(heard.link(address)), router(address) as server:
            await until(lambda: heard.num_connections)
            for n in range(NUM_ANSWERS):
                server.send(address.identity, accepted(n))
            while len(heard.messages) < NUM_ANSWERS:
                before = len(heard.messages)
                await asyncio.sleep(0)
                turns += len(heard.messages) > before
        assert heard.messages == [accepted(n) for n in range(NUM_ANSWERS)]
        assert turns > 1

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(limited())


def test_a_frame_that_is_no_answer_is_dropped(address: Address) -> None:
    async def scenario() -> None:
        heard = Heard()
        with closing(heard.link(address)), router(address) as server:
            await until(lambda: heard.num_connections)
            server.send(address.identity, SubscribeText(b"not a reply"))
            server.send(address.identity, accepted(1))
            await until(lambda: heard.messages)
        assert heard.messages == [accepted(1)]

    asyncio.run(scenario())


def test_what_cannot_be_sent_is_refused_and_the_rest_goes_out(address: Address) -> None:
    too_large = TokenizePrompt(b"t", TextPrompt("x" * (MAX_CLIENT_FRAME_BYTES + 1)))

    async def scenario() -> None:
        heard = Heard()
        with closing(heard.link(address)) as link, router(address) as server:
            for message in (asked(1), too_large, asked(2)):
                link.send(message)
            assert await orders(server, 2) == [asked(1), asked(2)]
        ((refused, error),) = heard.refused
        assert refused is too_large
        assert "too large" in str(error)

    asyncio.run(scenario())


def test_an_error_of_a_callback_is_told_and_ends_the_link(address: Address) -> None:
    def fail(message: Any) -> None:
        raise LookupError(message)

    async def scenario() -> None:
        heard = Heard(fail)
        with closing(heard.link(address)), router(address) as server:
            await until(lambda: heard.num_connections)
            server.send(address.identity, accepted(1))
            server.send(address.identity, accepted(2))
            await until(lambda: heard.errors)
            await asyncio.sleep(0)
        assert [type(error) for error in heard.errors] == [LookupError]
        assert heard.messages == [accepted(1)]

    asyncio.run(scenario())
