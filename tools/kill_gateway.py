"""Kill the gateway of a mock tree again and again while clients connect.

    python -m tools.kill_gateway [--kills 20]

Prints how long its requests hold their slots, how long until a chat is answered again, and how
many connections were refused meanwhile; ends with 1 beyond 1 s, 1.5 s and 0 of them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from hybridgen.client import Client
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree

HOST, PORT = "127.0.0.1", 18_098
FREED_S, ANSWERS_S = 1.0, 1.5
#: Between two kills: a gateway that dies before it is ready is given more time.
PAUSE_S = 0.5
CHAT = (
    '{"model":"mock","messages":[{"role":"user","content":"Hi"}],"stream":%s,"max_tokens":%d,'
    '"min_tokens":%d}'
)


class Knocking(threading.Thread):
    """Connects without end, asks whether the gateway lives, and counts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.num_connected = self.num_refused = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        """Until it is over."""
        while not self.is_over.wait(0.005):
            try:
                with socket.create_connection((HOST, PORT), timeout=10.0) as door:
                    self.num_connected += 1
                    with contextlib.suppress(OSError):  # its gateway was killed
                        door.sendall(b"GET /health/live HTTP/1.0\r\nhost: localhost\r\n\r\n")
                        door.recv(1 << 16)
            except ConnectionRefusedError:
                self.num_refused += 1


def main() -> int:
    """Start a tree, kill, measure; the exit code."""
    options = _parse()
    config = config_from_options(
        {
            "model": "mock",
            "mock_step_us": 1000,
            "num_gateways": 1,
            "port": PORT,
            "pool_restart_limit": options.kills,
            "log_level": "error",
        }
    )
    knocking = Knocking()
    with start_tree(config) as handle, Client(handle.uri) as client:
        knocking.start()
        times = [kill_once(client) for _ in range(options.kills)]
        knocking.is_over.set()
        knocking.join()
    freed_s, answers_s = (max(column) for column in zip(*times, strict=True))
    print(
        f"{options.kills} kills: slots free within {freed_s:.3f} s, answers again within "
        f"{answers_s:.3f} s, {knocking.num_refused} of {knocking.num_connected} connections refused"
    )
    return int(freed_s > FREED_S or answers_s > ANSWERS_S or knocking.num_refused > 0)


def kill_once(client: Client) -> tuple[float, float]:
    """Kill it under a stream; seconds until the slot is free and until a chat is answered."""
    connection, response = chat(is_stream=True, num_tokens=1800)
    response.readline()
    gateway = next(p for p in client.ps().processes if p.role == "gateway")
    os.kill(gateway.pid, signal.SIGKILL)
    killed_s = time.monotonic()
    _until(lambda: client.health().num_running == 0)
    freed_s = time.monotonic() - killed_s
    _until(_is_answered)
    answers_s = time.monotonic() - killed_s
    connection.close()
    time.sleep(PAUSE_S)
    return freed_s, answers_s


def chat(
    *, is_stream: bool, num_tokens: int
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A chat whose answer has begun."""
    connection = http.client.HTTPConnection(HOST, PORT, timeout=10.0)
    body = CHAT % (str(is_stream).lower(), num_tokens, num_tokens)
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    return connection, connection.getresponse()


def _is_answered() -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection, response = chat(is_stream=False, num_tokens=1)
        connection.close()
        return response.status == 200
    return False


def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.005)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
