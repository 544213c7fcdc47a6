"""The listening socket of a real tree: there from the first moment, whoever accepts on it."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.integration.test_gateway import CHAT, EXIT_UNAVAILABLE, chat_body, raw_post
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.http_caller import get
from tests.support.running_tree import running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NUM_KILLS = 3
#: A port that is taken is said so before a model is looked at.
REFUSED_S = 3.0


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-P", "-m", "hybridgen", "serve", *arguments)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


def test_a_client_that_comes_early_is_told_how_far_the_start_is() -> None:
    port = free_port()
    with serving("demo", "--port", str(port)):
        eventually(lambda: can_connect(port), 10.0)
        first = get(port, "/health")
        assert first.status == 503
        assert first.headers["retry-after"]
        assert first.json()["status"].startswith("loading ")
        shares = [first.json()["loaded_share"]]

        def is_ready() -> bool:
            answer = get(port, "/health")
            shares.append(answer.json().get("loaded_share", 1.0))
            return answer.status == 200

        eventually(is_ready, 60.0)
    assert shares == sorted(shares)
    assert len(set(shares)) > 3, shares


def can_connect(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_no_connection_is_refused_while_a_gateway_is_replaced() -> None:
    port = free_port()
    with (
        running_tree(model="mock", num_gateways=1, port=port, pool_restart_limit=100) as tree,
        Knocking(port) as knocking,
    ):
        for _ in range(NUM_KILLS):
            num_answers = knocking.num_answers
            old = tree.kill("gateway-0")
            tree.wait_replaced("gateway-0", old)
            eventually(lambda before=num_answers: knocking.num_answers > before + 3, 30.0)
    assert knocking.num_refused == 0
    assert knocking.num_answers > 0


class Knocking:
    """A thread that connects and asks without end, and counts how it is received."""

    def __init__(self, port: int) -> None:
        self.num_refused = self.num_answers = 0
        self._port = port
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._knock)

    def __enter__(self) -> Knocking:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _knock(self) -> None:
        while not self._is_over.wait(0.002):
            try:
                self.num_answers += self._ask()
            except ConnectionRefusedError:
                self.num_refused += 1

    def _ask(self) -> bool:
        """Whether an answer came; the connection that a killed gateway had in hand gets none."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as door:
            try:
                door.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
                return door.recv(1 << 16).startswith(b"HTTP/1.0 200")
            except ConnectionResetError:
                return False


def test_a_stop_leaves_nobody_in_the_queue() -> None:
    port = free_port()
    with running_tree(model="mock", num_gateways=1, port=port) as tree:
        assert tree.handle.stop() == 0
        assert not can_connect(port)


def test_a_port_that_is_taken_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        started_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hybridgen", "serve", "demo", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        took_s = time.monotonic() - started_s
    assert done.returncode == EXIT_UNAVAILABLE
    assert f"127.0.0.1 port {port}" in done.stderr
    assert "remedy: " in done.stderr
    assert "[1/5]" not in done.stderr
    assert took_s < REFUSED_S


def test_a_unix_socket_serves_and_is_gone_afterwards(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "http.sock"
    with running_tree(model="mock", num_gateways=1, uds=str(path), pool_restart_limit=100) as tree:
        assert ask_unix(path, chat_body()) == 200
        old = tree.kill("gateway-0")
        assert ask_unix(path, chat_body()) == 200  # waits for the successor
        tree.wait_replaced("gateway-0", old)
    assert list(tmp_path.iterdir()) == []


def ask_unix(path: Path, body: object) -> int:
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(20)
        door.connect(str(path))
        door.sendall(raw_post(CHAT, body))
        response = http.client.HTTPResponse(door)
        response.begin()
        assert msgspec.json.decode(response.read())
        return response.status
