"""Addresses to listen on: taken, stale, forbidden, and shared with nobody."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridgen.config import HttpSection
from hybridgen.errors import AddressUnavailable, ConfigError, NotPermitted
from hybridgen.ipc.runtime_dir import MAX_SOCKET_PATH_BYTES
from hybridgen.launch.listener import listen_tcp, listen_unix, listening
from tests.support.free_port import free_port

LOOPBACK = "127.0.0.1"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    tmp_path.chmod(0o700)
    place = tmp_path / "http.sock"
    yield place
    assert not place.is_socket()
    assert not place.with_name("http.sock.lock").exists()


def test_clients_can_connect_before_anybody_accepts() -> None:
    port = free_port()
    with (
        listening(HttpSection(num_gateways=1, port=port)) as listener,
        socket.create_connection((LOOPBACK, port)) as client,
    ):
        assert listener is not None
        assert os.get_inheritable(listener.fileno()) is False
        client.sendall(b"first")


def test_a_tree_without_gateways_listens_nowhere() -> None:
    port = free_port()
    with listening(HttpSection(num_gateways=0, port=port)) as listener:
        assert listener is None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port))


def test_a_port_that_is_taken_is_a_typed_error() -> None:
    port = free_port()
    first = listen_tcp(LOOPBACK, port)
    with pytest.raises(AddressUnavailable, match="is taken") as caught:
        listen_tcp(LOOPBACK, port)
    assert caught.value.exit_code == 69
    assert str(port) in str(caught.value.fields["value"])
    assert "--port" in str(caught.value.fields["remedy"])
    first.close()
    listen_tcp(LOOPBACK, port).close()


def test_nobody_else_can_share_the_port() -> None:
    port = free_port()
    listener = listen_tcp(LOOPBACK, port)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, port))
    listener.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_a_typed_error(host: str) -> None:
    with pytest.raises(AddressUnavailable):
        listen_tcp(host, free_port())


def test_only_its_user_can_connect_to_a_unix_socket(path: Path) -> None:
    with listening(HttpSection(num_gateways=1, uds=str(path))) as listener:
        assert listener is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_unix_socket_in_use_is_refused_and_left_alone(path: Path) -> None:
    first = listen_unix(path)
    with pytest.raises(AddressUnavailable, match=f"process {os.getpid()}") as caught:
        listen_unix(path)
    assert caught.value.fields["value"] == str(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    first.close()


def test_the_socket_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(AddressUnavailable, match="somebody listens"):
            listen_unix(path)
        assert path.is_socket()
    path.unlink()


def test_what_a_killed_server_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    path.with_name("http.sock.lock").write_text("4242\n")
    listen_unix(path).close()


def test_a_file_is_never_replaced(path: Path) -> None:
    path.write_text("keep me")
    with pytest.raises(ConfigError, match="another kind"):
        listen_unix(path)
    assert path.read_text() == "keep me"


def test_a_directory_that_others_can_write_to_is_refused(path: Path) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="mode 0777"):
        listen_unix(path)
    path.parent.chmod(0o1777)  # as /tmp: nobody can replace another's files
    listen_unix(path).close()


@pytest.mark.parametrize("name", ["no/such/place", "x" * (MAX_SOCKET_PATH_BYTES + 1)])
def test_a_path_that_cannot_be_is_a_typed_error(path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--uds"):
        listen_unix(path.parent / name)


def test_a_port_that_the_user_may_not_bind_exits_77(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, _address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(NotPermitted, match="not for this user") as caught:
        listen_tcp("127.0.0.1", 80)
    assert caught.value.exit_code == 77
