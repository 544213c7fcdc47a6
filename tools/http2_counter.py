"""An HTTP/2 client that only counts and times what comes back, at little cost of its own.

What it shares the machine's cores with is measured by it, so whatever can wait until the end does.
"""

from __future__ import annotations

import collections
import itertools
import socket
import struct
import time
from types import TracebackType

import hpack

from tools.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    head_block,
    settings,
)

_MAX_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65_535
_FRAME_HEAD_BYTES = 9
_TIMEOUT_S = 120.0
_EVENT, _LAST_EVENT = b"data: ", b"data: [DONE]"


class Http2Counter:
    """One connection; windows are never in the way.

    Args:
        port: on this machine.
        is_timing: keep the time of every frame of data, by stream.

    Attributes:
        num_events: server-sent events that came.
        num_ended_well: streams whose last event came, which follows no error.
    """

    def __init__(self, port: int, *, is_timing: bool = False) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = hpack.Decoder()
        self._is_timing = is_timing
        self._arrived_s: dict[int, list[float]] = collections.defaultdict(list)
        self._next_stream = 1
        self._num_open = 0
        self._waiting: collections.deque[tuple[bytes, bytes]] = collections.deque()
        self._rest = b""
        self._num_unacknowledged = 0
        self.num_events = self.num_ended_well = 0
        self._heads: list[bytes] = []
        self._statuses: dict[int, int] = collections.Counter()
        window = struct.pack(">I", _MAX_WINDOW - _FIRST_WINDOW)
        self._socket.sendall(settings(_MAX_WINDOW) + frame(WINDOW_UPDATE, 0, 0, window))

    def __enter__(self) -> Http2Counter:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self, path: str, bodies: list[bytes], max_open: int | None = None) -> None:
        """Send requests, at most ``max_open`` at once; those without a body are GET."""
        block = head_block("POST" if bodies[0] else "GET", path)
        self._waiting.extend((block, body) for body in bodies)
        self._send(len(bodies) if max_open is None else max_open)

    def wait(self) -> None:
        """Read until everything is answered."""
        while self._num_open or self._waiting:
            num_ended = self._num_open
            self._read()
            self._send(num_ended - self._num_open)

    @property
    def statuses(self) -> dict[int, int]:
        """Status → how many answers had it. Their heads are decoded here, all in their order."""
        for head in self._heads:
            fields = dict(self._decoder.decode(head))
            self._statuses[int(fields[":status"])] += 1
        self._heads.clear()
        return self._statuses

    def settle(self) -> None:
        """Read the server's first frames."""
        self._read()

    def steady_span_s(self) -> tuple[float, float]:
        """From when every stream has begun until the first one ends."""
        times = self._arrived_s.values()
        return max(one[0] for one in times), min(one[-1] for one in times)

    def steps_s(self, least_pause_s: float) -> list[list[float]]:
        """Arrivals of all streams in the steady span, apart where nothing came for so long."""
        begin_s, end_s = self.steady_span_s()
        times = sorted(t for one in self._arrived_s.values() for t in one if begin_s <= t < end_s)
        steps: list[list[float]] = [[]]
        for earlier, later in itertools.pairwise(times):
            steps[-1].append(earlier)
            if later - earlier > least_pause_s:
                steps.append([])
        return steps[1:-1]  # the first and the last may be cut

    def gaps_s(self, since_s: float = 0.0) -> list[float]:
        """From one frame of data to the next of the same stream, all that begin after that."""
        pairs = (itertools.pairwise(times) for times in self._arrived_s.values())
        return [b - a for a, b in itertools.chain.from_iterable(pairs) if a >= since_s]

    def first_s(self) -> float:
        """When the first data came."""
        return min(one[0] for one in self._arrived_s.values())

    def _send(self, num_requests: int) -> None:
        frames = bytearray()
        for _ in range(min(num_requests, len(self._waiting))):
            block, body = self._waiting.popleft()
            flags = END_HEADERS if body else END_HEADERS | END_STREAM
            frames += frame(HEADERS, flags, self._next_stream, block)
            if body:
                frames += frame(DATA, END_STREAM, self._next_stream, body)
            self._next_stream += 2
            self._num_open += 1
        if frames:
            self._socket.sendall(frames)

    def _read(self) -> None:
        data = self._rest + self._socket.recv(1 << 18)
        if len(data) == len(self._rest):
            raise ConnectionError("the server ended the connection")
        now_s = time.perf_counter()
        at = 0
        while at + _FRAME_HEAD_BYTES <= len(data):
            end = at + _FRAME_HEAD_BYTES + int.from_bytes(data[at : at + 3])
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9])
            self._take(kind, flags, stream, data[at + _FRAME_HEAD_BYTES : end], now_s)
            at = end
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, now_s: float) -> None:
        if kind == DATA:
            self.num_events += payload.count(_EVENT)
            self.num_ended_well += payload.count(_LAST_EVENT)
            self._num_unacknowledged += len(payload)
            if self._is_timing and payload:
                self._arrived_s[stream].append(now_s)
            if self._num_unacknowledged > _MAX_WINDOW // 4:
                self._acknowledge()
        elif kind == HEADERS:
            self._heads.append(payload)
        elif kind == SETTINGS and not flags & ACK:
            self._socket.sendall(frame(SETTINGS, ACK, 0))
        if (kind in {DATA, HEADERS} and flags & END_STREAM) or kind == RST_STREAM:
            self._num_open -= 1

    def _acknowledge(self) -> None:
        window = struct.pack(">I", self._num_unacknowledged)
        self._socket.sendall(frame(WINDOW_UPDATE, 0, 0, window))
        self._num_unacknowledged = 0
