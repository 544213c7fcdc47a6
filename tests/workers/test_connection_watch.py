from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from hybridgen.server import reconnects
from hybridgen.server.reconnects import MAX_LOST, MEMORY_S, network_of
from hybridgen.server.traffic import FIRST_REQUEST_S, FREE_BYTES, Traffic
from hybridgen.workers import connection_watch
from hybridgen.workers.connection_watch import (
    STALL_S,
    Connection,
    ConnectionWatch,
    accepted,
)
from hybridgen.workers.packet_filter import hear_later


class Link:
    """A server's port and one connection to it."""

    def __init__(
        self, listener: socket.socket, client: socket.socket, server: socket.socket
    ) -> None:
        self.listener = listener
        self.port = listener.getsockname()[1]
        self.client = client
        self.server = server
        self.peer = client.getsockname()[:2]
        self.traffic = Traffic()
        self.watch = ConnectionWatch(self.port, self.traffic, listener)

    @contextlib.contextmanager
    def another(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        """A further connection: the client's end and the server's."""
        with socket.create_connection(self.listener.getsockname()[:2], timeout=5) as client:
            server, _ = self.listener.accept()
            with server:
                yield client, server

    def send(self, num_bytes: int) -> None:
        """To the server, which reads all of it."""
        piece = bytes(1 << 16)
        for _ in range(num_bytes // len(piece)):
            self.client.sendall(piece)
            assert len(self.server.recv(len(piece), socket.MSG_WAITALL)) == len(piece)

    def look(self, now_s: float) -> None:
        """Once at every connection."""
        asyncio.run(self.watch.look(now_s))

    def is_open(self) -> bool:
        """Whether the server's end can still say something."""
        try:
            self.server.sendall(b"x")
        except OSError:
            return False
        return True


@pytest.fixture(params=["127.0.0.1", "::1"])
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with (
        socket.create_server((request.param, 0), family=family) as listener,
        socket.create_connection(listener.getsockname()[:2], timeout=5) as client,
    ):
        server, _ = listener.accept()
        with server:
            yield Link(listener, client, server)


def hears(server: socket.socket, within_s: float) -> bool:
    server.settimeout(within_s)
    with contextlib.suppress(TimeoutError):
        return server.recv(5, socket.MSG_WAITALL) == b"hello"
    return False


def open_connections(port: int) -> Iterator[Connection]:
    return accepted(port, os.listdir("/proc/self/fd"))


def test_connections_are_found_with_what_was_read(link: Link) -> None:
    link.client.sendall(b"abcde")
    assert link.server.recv(2, socket.MSG_WAITALL) == b"ab"
    found = [(one.peer, one.num_read) for one in open_connections(link.port)]
    assert found == [(link.peer, 2)]


def test_other_sockets_are_left_alone(link: Link) -> None:
    assert list(open_connections(link.port + 1)) == []


def test_a_flood_is_heard_no_more_and_then_cut(link: Link) -> None:
    link.look(100.0)
    link.send(FREE_BYTES + (1 << 20))
    link.look(100.1)
    link.client.send(b"more")
    link.server.settimeout(0.05)
    with pytest.raises(TimeoutError):
        link.server.recv(4)
    assert link.is_open()
    link.look(100.1 + STALL_S)
    assert not link.is_open()


def test_one_that_asks_as_much_as_it_sends_goes_on(link: Link) -> None:
    link.send(FREE_BYTES + (1 << 20))
    link.traffic.of(link.peer).num_bytes += 1 << 20
    link.look(100.0)
    link.client.sendall(b"more")
    assert link.server.recv(4, socket.MSG_WAITALL) == b"more"


def test_one_that_never_asks_is_not_waited_for(link: Link) -> None:
    link.look(100.0)
    assert link.is_open()
    link.look(100.0 + FIRST_REQUEST_S)
    assert not link.is_open()


def lose_some(link: Link) -> None:
    """Connections that end without a request, two more than what leaks meanwhile."""
    for i in range(MAX_LOST + 2):
        with link.another():
            link.look(100.0 + i / 100)
    link.look(100.3)


def test_new_connections_from_where_they_end_without_a_request_are_heard_a_look_later(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    lose_some(link)
    assert "connects again and again" in caplog.text
    with link.another() as (client, server):
        client.sendall(b"hello")
        assert not hears(server, 0.02)
        link.look(101.1)  # it comes in
        assert not hears(server, 0.02)
        link.look(101.2)  # it is its turn
        assert hears(server, 5.0)


def test_so_do_not_those_that_asked(link: Link) -> None:
    for i in range(2 * MAX_LOST):
        with link.another() as (client, _):
            link.traffic.of(client.getsockname()[:2]).num_bytes += 1
            link.look(100.0 + i / 100)
    link.look(101.0)
    with link.another() as (client, server):
        client.sendall(b"hello")
        assert hears(server, 5.0)


def test_all_are_heard_again_once_nobody_does_so_any_more(link: Link) -> None:
    lose_some(link)
    with link.another() as (client, late):
        client.sendall(b"hello")
        link.look(101.5 + MEMORY_S)  # the bar is lifted
        link.look(101.6 + MEMORY_S)  # and who came before is not forgotten
        assert hears(late, 5.0)
    with link.another() as (client, server):
        client.sendall(b"hello")
        assert hears(server, 5.0)


def test_those_that_ask_before_their_turn_do_not_keep_it_from_others(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnects, "HEARD_PER_S", 1)
    link.traffic.of(link.peer).num_bytes += 1
    with contextlib.ExitStack() as lost:
        for _ in range(MAX_LOST):
            lost.enter_context(link.another())
        link.look(100.0)
    with socket.create_connection(link.listener.getsockname()[:2], timeout=5) as early:
        link.look(101.0)  # the bar comes a moment too late for it
        accepted_early, _ = link.listener.accept()
        with accepted_early, link.another() as (client, server):
            link.look(101.1)
            link.traffic.of(early.getsockname()[:2]).num_bytes += 1
            client.sendall(b"hello")
            link.look(101.2)
            link.look(101.3)
            assert hears(server, 5.0)


def test_nobody_waits_where_a_crowd_does(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnects, "CROWD", 2)
    lose_some(link)
    with link.another(), link.another():
        link.look(101.1)
        link.look(101.2)
    with link.another() as (client, server):
        client.sendall(b"hello")
        assert hears(server, 5.0)


def test_a_predecessors_bar_is_lifted(link: Link) -> None:
    hear_later(link.listener, [network_of(link.peer)])
    with link.another() as (client, waiting):
        client.sendall(b"hello")
        link.watch = ConnectionWatch(link.port, link.traffic, link.listener)
        link.look(100.0)
        assert hears(waiting, 5.0)
    with link.another() as (client, server):
        client.sendall(b"hello")
        assert hears(server, 5.0)


def test_others_have_their_turn_during_a_look_and_who_comes_then_is_kept(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_watch, "FILES_AT_ONCE", 1)
    gone, late = ("192.0.2.1", 1), ("192.0.2.2", 2)
    for peer in (gone, link.peer):
        link.traffic.of(peer).num_bytes += 1

    async def scene() -> None:
        look = asyncio.create_task(link.watch.look(100.0))
        await asyncio.sleep(0)
        assert not look.done()
        link.traffic.of(late).num_bytes += 1
        await look

    asyncio.run(scene())
    assert link.traffic.peers() == {link.peer, late}


def test_a_connection_that_cannot_be_described_is_open_all_the_same(
    link: Link, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link.traffic.of(link.peer).num_bytes += 1
    monkeypatch.setattr(connection_watch, "_TCP_INFO_BYTES", 8)
    link.look(100.0)
    link.look(100.1)
    assert link.traffic.peers() == {link.peer}
    assert link.is_open()
    assert [record.message for record in caplog.records] == ["1 connections could not be described"]


def test_nobody_is_taken_for_gone_while_no_file_can_be_copied(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.traffic.of(link.peer).num_bytes += 1
    monkeypatch.setattr(connection_watch.os, "dup", fails)
    with pytest.raises(OSError, match="too many"):
        link.look(100.0)
    assert link.traffic.peers() == {link.peer}


def test_a_look_that_fails_is_told_once_and_tried_again(
    link: Link, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    num_tries, is_seen = 0, asyncio.Event()
    real = os.listdir

    def mostly_fails(path: str) -> list[str]:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 4:
            fails()
        is_seen.set()
        return real(path)

    monkeypatch.setattr(connection_watch, "LOOK_S", 0.0)
    monkeypatch.setattr(connection_watch, "IDLE_LOOK_S", 0.0)
    monkeypatch.setattr(connection_watch.os, "listdir", mostly_fails)

    async def scene() -> None:
        task = asyncio.create_task(link.watch.run())
        async with asyncio.timeout(5.0):
            await is_seen.wait()
        assert not task.done()
        task.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert len(caplog.records) == 1
    assert "too many files" in caplog.text


def fails(*_: Any) -> Any:
    raise OSError(errno.EMFILE, "too many files")
