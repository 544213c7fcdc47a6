from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from hybridgen.server.reconnects import network_of
from hybridgen.workers.packet_filter import hear_again, hear_later, hear_nothing

ADDRESSES = ["127.0.0.1", "::1"]
DEAF_S = 0.02
HEARD_S = 5.0


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        yield listener


@contextlib.contextmanager
def connected(listener: socket.socket, source: str) -> Iterator[tuple[socket.socket, str]]:
    """The server's end of a connection, and where it comes from."""
    name = listener.getsockname()[:2]
    with socket.create_connection(name, timeout=HEARD_S, source_address=(source, 0)) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"hello")
            yield server, client.getsockname()[0]


def is_heard(server: socket.socket, within_s: float) -> bool:
    server.settimeout(within_s)
    with contextlib.suppress(TimeoutError):
        return server.recv(5, socket.MSG_WAITALL) == b"hello"
    return False


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_a_network_says_at_first_comes_later(address: str) -> None:
    others = [network_of(("192.0.2.1", 1)), network_of(("2001:db8::1", 1))]
    with listening(address) as listener:
        assert hear_later(listener, [*others, network_of((address, 1))])
        with connected(listener, address) as (server, _):
            assert not is_heard(server, DEAF_S)
            hear_again(server)
            assert is_heard(server, HEARD_S)  # TCP says it again


@pytest.mark.parametrize("address", ADDRESSES)
def test_others_are_heard_at_once(address: str) -> None:
    others = [network_of(("127.0.0.2", 1)), network_of(("2001:db8::1", 1))]
    with listening(address) as listener:
        assert hear_later(listener, others)
        with connected(listener, address) as (server, _):
            assert is_heard(server, HEARD_S)


def test_a_neighbouring_address_is_another_network() -> None:
    with listening("127.0.0.1") as listener:
        assert hear_later(listener, [network_of(("127.0.0.2", 1))])
        with connected(listener, "127.0.0.2") as (server, source):
            assert source == "127.0.0.2"
            assert not is_heard(server, DEAF_S)


def test_a_listener_that_hears_again_does_so_for_new_connections() -> None:
    with listening("127.0.0.1") as listener:
        assert hear_later(listener, [network_of(("127.0.0.1", 1))])
        hear_again(listener)
        hear_again(listener)  # safe to repeat
        with connected(listener, "127.0.0.1") as (server, _):
            assert is_heard(server, HEARD_S)


def test_an_open_connection_goes_on_when_its_network_has_to_wait() -> None:
    with listening("127.0.0.1") as listener, connected(listener, "127.0.0.1") as (server, _):
        assert hear_later(listener, [network_of(("127.0.0.1", 1))])
        assert is_heard(server, HEARD_S)


def test_the_kernel_drops_what_nobody_hears() -> None:
    with listening("127.0.0.1") as listener, connected(listener, "127.0.0.1") as (server, _):
        assert is_heard(server, HEARD_S)
        assert hear_nothing(server)
        assert not is_heard(server, DEAF_S)
