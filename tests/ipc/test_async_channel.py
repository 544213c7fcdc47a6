"""The asyncio dealer against a plain router."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hybridgen.errors import ChannelTimeout, InvalidRequest
from hybridgen.ipc.async_channel import AsyncDealer
from hybridgen.ipc.channel import Router
from hybridgen.messages import (
    ClientOrder,
    ClientReply,
    Decoder,
    QueryHealth,
    RequestAccepted,
    SubscribeText,
)

ORDERS, REPLIES = Decoder(ClientOrder), Decoder(ClientReply)
LIMIT_S = 10.0


async def next_order(router: Router) -> tuple[bytes, Any]:
    async with asyncio.timeout(LIMIT_S):
        while (received := router.receive()) is None:
            await asyncio.sleep(0.001)
        return received


async def exchange(router: Router, dealer: AsyncDealer, n: int) -> None:
    await dealer.send(QueryHealth(b"q%d" % n))
    identity, order = await next_order(router)
    assert order == QueryHealth(b"q%d" % n)
    router.send(identity, RequestAccepted(order.request_id, n, 0))
    async with asyncio.timeout(LIMIT_S):
        assert (await dealer.receive()).detokenizer == n


def test_messages_go_both_ways_and_each_new_connection_is_announced(short_dir: Path) -> None:
    endpoint = f"ipc://{short_dir}/a.sock"

    async def scenario() -> None:
        connected = asyncio.Event()
        dealer = AsyncDealer(endpoint, b"c", REPLIES, on_connect=connected.set)
        for n in (1, 2):
            connected.clear()
            with closing(Router([endpoint], ORDERS)) as router:
                async with asyncio.timeout(LIMIT_S):
                    await connected.wait()
                assert dealer.num_connections == n
                await exchange(router, dealer, n)
        await dealer.close()
        await dealer.close()

    asyncio.run(scenario())


def test_corrupt_answers_are_dropped_and_counted(short_dir: Path) -> None:
    endpoint = f"ipc://{short_dir}/a.sock"

    async def scenario() -> None:
        dealer = AsyncDealer(endpoint, b"c", REPLIES)
        with closing(Router([endpoint], ORDERS)) as router:
            await exchange(router, dealer, 1)
            router.send(b"c", SubscribeText(b"not a reply"))
            await exchange(router, dealer, 2)
        assert dealer.num_corrupt == 1
        await dealer.close()

    asyncio.run(scenario())


def test_a_full_queue_is_a_timeout_and_a_large_message_is_refused(short_dir: Path) -> None:
    async def scenario() -> None:
        dealer = AsyncDealer(
            f"ipc://{short_dir}/none", b"c", REPLIES, high_water=2, max_frame_bytes=100
        )
        for _ in range(2):
            await dealer.send(QueryHealth(b"q"))
        with pytest.raises(ChannelTimeout):
            await dealer.send(QueryHealth(b"q"), timeout_s=0.01)
        with pytest.raises(InvalidRequest, match="too large"):
            await dealer.send(QueryHealth(b"q" * 100))
        await dealer.close()

    asyncio.run(scenario())


def test_an_error_of_the_callback_is_raised_at_close(short_dir: Path) -> None:
    endpoint = f"ipc://{short_dir}/a.sock"

    def fail() -> None:
        raise LookupError("callback")

    async def scenario() -> None:
        dealer = AsyncDealer(endpoint, b"c", REPLIES, on_connect=fail)
        with closing(Router([endpoint], ORDERS)) as router:
            await exchange(router, dealer, 1)
            async with asyncio.timeout(LIMIT_S):
                while dealer.num_connections == 0:
                    await asyncio.sleep(0.001)
        with pytest.raises(LookupError, match="callback"):
            await dealer.close()

    asyncio.run(scenario())
