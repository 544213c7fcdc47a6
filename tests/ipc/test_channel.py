"""Routers and dealers: delivery, refusal, reconnects; nothing ever blocks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq

from hybridgen.errors import AlreadyRunning, ConfigError, InvalidRequest, MessageCorrupt, RingFull
from hybridgen.ipc.channel import Dealer, Poller, Router, SendResult
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.zmq_options import MAX_CLIENT_FRAME_BYTES, CurveKeys
from hybridgen.messages import (
    ClientOrder,
    ClientReply,
    Decoder,
    HealthReport,
    QueryHealth,
    RequestAccepted,
    SubscribeText,
)
from tests.support.eventually import eventually

ORDERS, REPLIES = Decoder(ClientOrder), Decoder(ClientReply)
ACCEPTED = RequestAccepted(b"r" * 16, 0, 7)


@pytest.fixture
def endpoint(short_dir: Path) -> str:
    return f"ipc://{short_dir}/a.sock"


@pytest.fixture
def router(endpoint: str) -> Iterator[Router]:
    with closing(Router([endpoint], ORDERS, max_frame_bytes=1 << 16, high_water=8)) as bound:
        yield bound


def receive(thing: Any, timeout_s: float = 5.0) -> Any:
    poller = Poller()
    poller.add(thing)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        poller.poll(0.1)
        received = thing.receive()
        if received is not None:
            return received
    raise AssertionError("nothing arrived")


def raw_dealer(endpoint: str, identity: bytes = b"raw") -> zmq.Socket[bytes]:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.linger = 0
    socket.routing_id = identity
    socket.connect(endpoint)
    return socket


def close_raw(socket: zmq.Socket[bytes]) -> None:
    socket.close()
    socket.context.term()


def test_an_order_and_its_answer_find_their_way(router: Router, endpoint: str) -> None:
    with closing(Dealer(endpoint, b"client-1", REPLIES)) as dealer:
        assert dealer.send(QueryHealth(b"q"))
        assert receive(router) == (b"client-1", QueryHealth(b"q"))
        report = HealthReport(request_id=b"q", is_ready=True, status="ready")
        assert router.send(b"client-1", report) is SendResult.SENT
        assert receive(dealer) == report
        assert router.receive() is None
        assert dealer.receive() is None


def test_an_unknown_peer_is_gone(router: Router) -> None:
    assert router.send(b"nobody", ACCEPTED) is SendResult.GONE


def test_a_closed_peer_becomes_gone(router: Router, endpoint: str) -> None:
    with closing(Dealer(endpoint, b"x", REPLIES)) as dealer:
        dealer.send(QueryHealth(b"q"))
        receive(router)
    eventually(lambda: router.send(b"x", ACCEPTED) is SendResult.GONE)


def test_a_peer_that_does_not_read_blocks_and_loses_nothing(router: Router, endpoint: str) -> None:
    with closing(Dealer(endpoint, b"slow", REPLIES, high_water=8)) as dealer:
        dealer.send(QueryHealth(b"q"))
        receive(router)
        num_sent = 0
        padding = b"x" * 8000
        while router.send(b"slow", RequestAccepted(padding, num_sent, 0)) is SendResult.SENT:
            num_sent += 1
            assert num_sent < 10_000
        for n in range(num_sent):
            assert receive(dealer).detokenizer == n
        eventually(lambda: router.send(b"slow", ACCEPTED) is SendResult.SENT)


def test_a_dealer_whose_queue_is_full_says_so(short_dir: Path) -> None:
    with closing(Dealer(f"ipc://{short_dir}/none", b"d", REPLIES, high_water=4)) as dealer:
        assert [dealer.send(QueryHealth(b"q")) for _ in range(5)] == [True] * 4 + [False]


def test_a_fact_that_must_not_be_lost_raises_when_the_queue_is_full(short_dir: Path) -> None:
    with closing(Dealer(f"ipc://{short_dir}/nobody", b"d", REPLIES, high_water=2)) as dealer:
        dealer.tell(QueryHealth(b"1"))
        dealer.tell(QueryHealth(b"2"))
        with pytest.raises(RingFull, match="QueryHealth"):
            dealer.tell(QueryHealth(b"3"))


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1garbage"],
        [b"\xff" * 1000],
        [b"", b""],
        [b"one", b"two", b"three"],
    ],
)
def test_frames_that_are_no_message_are_dropped_and_counted(
    endpoint: str, frames: list[bytes]
) -> None:
    told: list[tuple[bytes, MessageCorrupt]] = []

    def on_corrupt(identity: bytes, _: bytes, error: MessageCorrupt) -> None:
        told.append((identity, error))

    with closing(Router([endpoint], ORDERS, on_corrupt=on_corrupt)) as router:
        socket = raw_dealer(endpoint)
        socket.send_multipart(frames)
        with closing(Dealer(endpoint, b"good", REPLIES)) as dealer:
            dealer.send(QueryHealth(b"q"))
            assert receive(router) == (b"good", QueryHealth(b"q"))
            eventually(lambda: router.receive() is None and router.num_corrupt == 1)
        close_raw(socket)
    assert [identity for identity, _ in told] == [b"raw"]


def test_a_message_of_another_channel_is_dropped_and_counted(router: Router, endpoint: str) -> None:
    with closing(Dealer(endpoint, b"c", REPLIES)) as dealer:
        dealer.send(SubscribeText(b"r"))
        dealer.send(QueryHealth(b"q"))
        assert receive(router) == (b"c", QueryHealth(b"q"))
    assert router.num_corrupt == 1


@pytest.mark.parametrize(
    ("limit_bytes", "frame_bytes"),
    [(1 << 16, (1 << 16) + 1), (MAX_CLIENT_FRAME_BYTES, 64 << 20)],
)
def test_an_oversized_frame_disconnects_its_sender_and_nobody_else(
    endpoint: str, limit_bytes: int, frame_bytes: int
) -> None:
    with (
        closing(Router([endpoint], ORDERS, max_frame_bytes=limit_bytes)) as router,
        closing(Dealer(endpoint, b"good", REPLIES)) as dealer,
    ):
        dealer.send(QueryHealth(b"1"))
        receive(router)
        socket = raw_dealer(endpoint, b"bad")
        events = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.send(bytes(frame_bytes))
        assert events.poll(5000), "the sender is cut off"
        socket.disable_monitor()
        events.close()
        close_raw(socket)
        dealer.send(QueryHealth(b"2"))
        assert receive(router) == (b"good", QueryHealth(b"2"))
        assert router.num_corrupt == 0


def test_a_message_larger_than_the_peer_accepts_is_refused_before_it_is_sent(
    endpoint: str,
) -> None:
    with closing(Dealer(endpoint, b"c", REPLIES, max_frame_bytes=1000)) as dealer:
        with pytest.raises(InvalidRequest, match="too large") as caught:
            dealer.send(QueryHealth(b"x" * 1000))
        assert caught.value.fields["limit"] == 1000


@pytest.mark.parametrize("bad", ["half a pair \ud800", 2**70, object()])
def test_a_message_that_cannot_be_written_is_refused_and_the_dealer_goes_on(
    router: Router, endpoint: str, bad: Any
) -> None:
    with closing(Dealer(endpoint, b"c", REPLIES)) as dealer:
        with pytest.raises(InvalidRequest, match="cannot be sent"):
            dealer.send(QueryHealth(bad))
        dealer.send(QueryHealth(b"1"))
        assert receive(router) == (b"c", QueryHealth(b"1"))


def test_a_corrupt_answer_is_dropped_and_counted_by_the_dealer(
    router: Router, endpoint: str
) -> None:
    with closing(Dealer(endpoint, b"c", REPLIES)) as dealer:
        dealer.send(QueryHealth(b"q"))
        receive(router)
        router.send(b"c", SubscribeText(b"no reply at all"))
        router.send(b"c", ACCEPTED)
        assert receive(dealer) == ACCEPTED
        assert dealer.num_corrupt == 1


def test_a_second_binder_is_refused_and_the_first_keeps_its_peers(
    router: Router, endpoint: str
) -> None:
    with pytest.raises(AlreadyRunning):
        Router([endpoint], ORDERS)
    with closing(Dealer(endpoint, b"c", REPLIES)) as dealer:
        dealer.send(QueryHealth(b"q"))
        assert receive(router)[0] == b"c"


def test_a_bound_path_is_private_and_gone_after_close(endpoint: str, short_dir: Path) -> None:
    with closing(Router([endpoint], ORDERS)):
        assert (short_dir / "a.sock").stat().st_mode & 0o777 == 0o600
    assert list(short_dir.iterdir()) == []


def test_a_new_connection_takes_over_the_identity_of_the_old_one(
    router: Router, endpoint: str
) -> None:
    with closing(Dealer(endpoint, b"same", REPLIES)) as old:
        old.send(QueryHealth(b"old"))
        receive(router)
        with closing(Dealer(endpoint, b"same", REPLIES)) as new:
            new.send(QueryHealth(b"new"))
            assert receive(router) == (b"same", QueryHealth(b"new"))
            router.send(b"same", ACCEPTED)
            assert receive(new) == ACCEPTED
        assert old.receive() is None


CHILD_DEALER = """
import sys, time
from hybridgen.ipc.channel import Dealer
from hybridgen.messages import ClientReply, Decoder, QueryHealth
dealer = Dealer(sys.argv[1], b"worker-0", Decoder(ClientReply))
dealer.send(QueryHealth(sys.argv[2].encode()))
time.sleep(60)
"""

CHILD_ROUTER = """
import sys, time
from hybridgen.ipc.channel import Poller, Router
from hybridgen.messages import ClientOrder, Decoder, RequestAccepted
router = Router([sys.argv[1]], Decoder(ClientOrder))
poller = Poller()
poller.add(router)
while True:
    poller.poll(1.0)
    received = router.receive()
    if received is not None:
        router.send(received[0], RequestAccepted(received[1].request_id, int(sys.argv[2]), 0))
"""


def child(script: str, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script, *args])


def test_a_replacement_of_a_killed_peer_is_reached_under_the_same_identity(
    router: Router, endpoint: str
) -> None:
    for name in ("first", "second"):
        with child(CHILD_DEALER, endpoint, name) as process:
            assert receive(router, 10.0) == (b"worker-0", QueryHealth(name.encode()))
            assert router.send(b"worker-0", ACCEPTED) is SendResult.SENT
            process.kill()


def test_a_dealer_learns_that_its_killed_router_came_back(endpoint: str) -> None:
    with closing(Dealer(endpoint, b"c", REPLIES, is_monitored=True)) as dealer:
        assert dealer.connections() == 0
        for incarnation in (1, 2, 3):
            with child(CHILD_ROUTER, endpoint, str(incarnation)) as process:
                eventually(lambda n=incarnation: dealer.connections() == n, 10.0)
                dealer.send(QueryHealth(b"q"))
                assert receive(dealer).detokenizer == incarnation
                process.kill()


def test_a_poller_wakes_for_routers_connections_and_doorbells(
    router: Router, endpoint: str
) -> None:
    poller, bell = Poller(), Doorbell.create()
    poller.add(router)
    poller.add(bell)
    assert poller.poll(0.0) == set()
    bell.ring()
    assert poller.poll(5.0) == {bell}
    bell.clear()
    with closing(Dealer(endpoint, b"c", REPLIES, is_monitored=True)) as dealer:
        poller.add(dealer)
        assert poller.poll(5.0) == {dealer}, "connected"
        assert dealer.connections() == 1
        dealer.send(QueryHealth(b"q"))
        assert poller.poll(5.0) == {router}
        receive(router)
        poller.remove(dealer)
        bell.ring()
        assert poller.poll(5.0) == {bell}
    bell.close()


def test_a_poller_keeps_its_time_limit() -> None:
    poller, bell = Poller(), Doorbell.create()
    poller.add(bell)
    started_s = time.monotonic()
    assert poller.poll(0.01) == set()
    assert 0.01 <= time.monotonic() - started_s < 5.0
    bell.close()


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ("tcp://127.0.0.1:0", "encryption"),
        ("inproc://x", "scheme"),
        ("nonsense", "scheme"),
        ("ipc://" + "x" * 108, "length"),
        ("ipc://", "length"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(bad: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Router([bad], ORDERS)
    with pytest.raises(ConfigError, match=match):
        Dealer(bad, b"c", REPLIES)


def test_tcp_works_with_curve_keys_and_only_for_who_knows_the_servers_key(
    free_port: int,
) -> None:
    server, client = zmq.curve_keypair(), zmq.curve_keypair()
    address = f"tcp://127.0.0.1:{free_port}"
    with closing(Router([address], ORDERS, curve=CurveKeys(*server))) as router:
        wrong = CurveKeys(*client, client[0])
        with closing(Dealer(address, b"wrong", REPLIES, curve=wrong)) as dealer:
            dealer.send(QueryHealth(b"wrong"))
            good = CurveKeys(*client, server[0])
            with closing(Dealer(address, b"good", REPLIES, curve=good)) as other:
                other.send(QueryHealth(b"q"))
                assert receive(router) == (b"good", QueryHealth(b"q"))
        assert router.receive() is None
