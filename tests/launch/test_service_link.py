"""The notify protocol as the manager's end of the socket sees it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hybridgen.launch.service_link import ServiceLink, loading_status, serving_status
from tests.support.eventually import eventually
from tests.support.fake_clock import FakeClock
from tests.support.stand_in_processes import StandInTree


@pytest.fixture(params=["path", "abstract"])
def manager_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    name = str(tmp_path / "n") if request.param == "path" else f"\0hybridgen-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        listening.setblocking(False)
        yield listening


def address_of(listening: socket.socket) -> str:
    name = listening.getsockname()
    return name if isinstance(name, str) else "@" + name[1:].decode()


def messages(listening: socket.socket) -> list[str]:
    """One text per datagram that waits."""
    found = []
    while True:
        try:
            found.append(listening.recv(4096).decode())
        except BlockingIOError:
            return found


def tell(manager: ServiceLink, status: str, *, ready: bool = True, stop: bool = False) -> None:
    manager.tell(is_ready=ready, is_stopping=stop, status=status)


def test_each_fact_is_told_once(manager_socket: socket.socket) -> None:
    manager = ServiceLink(address_of(manager_socket), None, FakeClock())
    tell(manager, "loading 10 %", ready=False)
    tell(manager, "loading 10 %", ready=False)
    tell(manager, "ready")
    tell(manager, "ready")
    tell(manager, "ending", ready=False, stop=True)
    tell(manager, "ending", ready=False, stop=True)
    assert messages(manager_socket) == [
        "STATUS=loading 10 %",
        "READY=1\nSTATUS=ready",
        "STOPPING=1\nSTATUS=ending",
    ]


def test_the_watchdog_is_fed_in_time_and_only_while_ready(manager_socket: socket.socket) -> None:
    clock = FakeClock()
    manager = ServiceLink(address_of(manager_socket), 30.0, clock)
    tell(manager, "loading", ready=False)
    assert manager.next_due_s is None
    tell(manager, "ready")
    messages(manager_socket)
    due_s = manager.next_due_s
    assert due_s == clock() + 10.0
    clock.advance(9.9)
    tell(manager, "ready")
    assert not messages(manager_socket)
    clock.advance(0.1)
    tell(manager, "ready")
    assert messages(manager_socket) == ["WATCHDOG=1"]
    clock.advance(25.0)
    tell(manager, "not ready", ready=False)
    assert messages(manager_socket) == ["STATUS=not ready"]
    assert manager.next_due_s is None
    tell(manager, "ready")
    assert messages(manager_socket) == ["STATUS=ready\nWATCHDOG=1"]


def test_a_status_stays_one_line(manager_socket: socket.socket) -> None:
    manager = ServiceLink(address_of(manager_socket), None, FakeClock())
    tell(manager, "gone:\nREADY=1", ready=False)
    assert messages(manager_socket) == ["STATUS=gone: READY=1"]


def test_the_environment_names_the_manager_and_forgets_it(manager_socket: socket.socket) -> None:
    environment = {
        "NOTIFY_SOCKET": address_of(manager_socket),
        "WATCHDOG_USEC": "6000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    manager = ServiceLink.take_from(environment, FakeClock(100.0))
    assert environment == {"HOME": "/"}
    tell(manager, "ready")
    assert messages(manager_socket) == ["READY=1\nSTATUS=ready\nWATCHDOG=1"]
    assert manager.next_due_s == 102.0


@pytest.mark.parametrize(
    "variables",
    [
        {"WATCHDOG_PID": "1"},  # another process's
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
    ],
)
def test_a_watchdog_that_is_not_meant_is_left_alone(variables: dict[str, str]) -> None:
    environment = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "5", **variables}
    manager = ServiceLink.take_from(environment, FakeClock())
    tell(manager, "ready")
    assert manager.next_due_s is None


def test_without_a_manager_nothing_is_sent() -> None:
    manager = ServiceLink.take_from({"WATCHDOG_USEC": "5"}, FakeClock())
    tell(manager, "ready")
    assert not manager.is_there
    assert manager.next_due_s is None


def test_a_manager_that_is_gone_is_complained_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = ServiceLink(str(tmp_path / "gone"), None, FakeClock())
    tell(manager, "a")
    tell(manager, "b")
    assert len(caplog.records) == 1


def test_a_socket_of_another_family_is_said_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceLink.take_from({"NOTIFY_SOCKET": "vsock:2:9999"}, FakeClock())
    assert not manager.is_there
    assert "vsock:2:9999" in caplog.text


@dataclass
class StandInPlace:
    name: str
    is_ready: bool = False
    state_name: str = "starting"
    last_exit: str = ""


def test_a_status_names_what_is_missing() -> None:
    gpu = StandInPlace("gpu-0", state_name="waiting", last_exit="killed by SIGKILL")
    assert loading_status(0.43, [StandInPlace("gpu-0")]) == "loading 43 %: gpu-0 starting"
    assert serving_status([gpu]) == "not ready: gpu-0 waiting (killed by SIGKILL)"
    assert serving_status([StandInPlace("gpu-0", is_ready=True)]) == "ready"
    many = [StandInPlace(f"sampler-{i}") for i in range(9)]
    assert serving_status(many).endswith("sampler-3 starting and 5 more")


def test_a_tree_tells_its_manager_everything(manager_socket: socket.socket, tmp_path: Path) -> None:
    heard: list[str] = []

    def hears(text: str) -> bool:
        heard.extend(messages(manager_socket))
        return any(text in message for message in heard)

    manager = {"NOTIFY_SOCKET": address_of(manager_socket), "WATCHDOG_USEC": "300000"}
    broken = {"STAND_IN_TOKENIZER": "hang@2"}
    with StandInTree(tmp_path, **manager, **broken) as tree:
        tree.wait_ready()
        eventually(lambda: hears("READY=1"))
        assert heard[0] == "STATUS=reading the model"
        # Who is still missing when it says so depends on who was quick.
        assert any(" %: " in message and " starting" in message for message in heard)
        eventually(lambda: "WATCHDOG=1" in heard or hears("WATCHDOG=1"))
        os.kill(tree.pid_of("tokenizer-0"), signal.SIGKILL)
        eventually(lambda: hears("STATUS=not ready: tokenizer-0 waiting (killed by SIGKILL)"))
        eventually(lambda: hears("STATUS=not ready: tokenizer-0 starting"), 10.0)
        assert not any("WATCHDOG" in message for message in after(heard, "not ready"))
        tree.process.send_signal(signal.SIGTERM)
        assert tree.wait_exit()[0] == 0
        assert hears("STOPPING=1")
        assert sum("READY=1" in message for message in heard) == 1


def after(heard: list[str], text: str) -> list[str]:
    first = next(i for i, message in enumerate(heard) if text in message)
    return heard[first:]
