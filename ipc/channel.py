"""Messages over ZeroMQ for processes that run their own loop: nothing here ever blocks.

A ``Router`` is bound by the side that is looked for (coscheduler, detokenizer, supervisor) and
knows its peers by identity; a ``Dealer`` connects to one and reconnects for ever. A frame that is
not a message of the expected union is dropped and counted.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from hybridgen.errors import InvalidRequest, MessageCorrupt, RingFull
from hybridgen.ipc import zmq_context
from hybridgen.ipc.file_lock import FileLock
from hybridgen.ipc.zmq_options import (
    HIGH_WATER,
    MAX_CLIENT_FRAME_BYTES,
    CurveKeys,
    apply_options,
    check_endpoint,
)
from hybridgen.messages import Decoder, Frame, encode

OnCorrupt = Callable[[bytes, bytes, MessageCorrupt], None]
_MAX_CORRUPT_IN_A_ROW = 64  # then give other sockets a turn
# As plain numbers: arithmetic with the library's own enumerations costs more than a system call.
_NOBLOCK, _NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_POLLIN, _POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)


class SendResult(enum.Enum):
    """What became of a message."""

    SENT = "sent"  # queued for a connected peer
    BLOCKED = "blocked"  # the peer's queue is full: keep the message and try later
    GONE = "gone"  # no such peer is connected


class Router:
    """A bound ROUTER socket.

    Attributes:
        num_corrupt: frames dropped because they were no message of the union.
    """

    def __init__(
        self,
        endpoints: Iterable[str],
        decoder: Decoder,
        *,
        max_frame_bytes: int = MAX_CLIENT_FRAME_BYTES,
        high_water: int = HIGH_WATER,
        is_handover: bool = True,
        on_corrupt: OnCorrupt | None = None,
        curve: CurveKeys | None = None,
    ) -> None:
        """Bind all endpoints.

        Args:
            endpoints: ``ipc://…`` paths, or ``tcp://…`` with ``curve``.
            decoder: of the union of messages that may arrive.
            max_frame_bytes: a peer that sends a larger frame is disconnected.
            high_water: messages queued per peer.
            is_handover: a new connection with a known identity replaces the old one.
            on_corrupt: told (identity, frame, error) of each dropped frame.
            curve: keys for tcp.

        Raises:
            AlreadyRunning: another process is bound to one of the ipc paths.
            ConfigError: an endpoint that cannot be used.
        """
        endpoints = list(endpoints)
        for endpoint in endpoints:
            check_endpoint(endpoint, curve)
        self._decoder = decoder
        self._on_corrupt = on_corrupt
        self.num_corrupt = 0
        self._locks: list[tuple[Path, FileLock]] = []
        self._socket = zmq_context.acquire().socket(zmq.ROUTER)
        try:
            apply_options(
                self._socket, max_frame_bytes=max_frame_bytes, high_water=high_water, curve=curve
            )
            self._socket.router_mandatory = True
            self._socket.router_handover = is_handover
            for endpoint in endpoints:
                self._bind(endpoint)
        except BaseException:
            self.close()
            raise

    def send(self, identity: bytes, message: Frame) -> SendResult:
        """Queue a message for a peer, without waiting."""
        frame = encode(message)
        try:
            self._socket.send(identity, _NOBLOCK_MORE)
            self._socket.send(frame, _NOBLOCK)
        except zmq.Again:
            return SendResult.BLOCKED
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return SendResult.GONE
            raise
        return SendResult.SENT

    def receive(self) -> tuple[bytes, Any] | None:
        """The next (identity, message), or None when there is none now."""
        for _ in range(_MAX_CORRUPT_IN_A_ROW):
            frames = _receive_frames(self._socket, 2)
            if frames is None:
                return None
            identity, frame = frames
            try:
                return identity, self._decoder(frame)
            except MessageCorrupt as error:
                self.num_corrupt += 1
                if self._on_corrupt is not None:
                    self._on_corrupt(identity, frame, error)
        return None

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """What a Poller watches."""
        return (self._socket,)

    def close(self) -> None:
        """Unbind and close; safe to repeat."""
        if not self._socket.closed:
            self._socket.close()
            zmq_context.release()
        for path, lock in self._locks:
            path.unlink(missing_ok=True)
            lock.release(is_removed=True)
        self._locks = []

    def _bind(self, endpoint: str) -> None:
        scheme, _, address = endpoint.partition("://")
        if scheme == "ipc":
            # ZeroMQ takes a bound path over without a word; this lock does not.
            self._locks.append((Path(address), FileLock.acquire(Path(f"{address}.lock"))))
        self._socket.bind(endpoint)
        if scheme == "ipc":
            Path(address).chmod(0o600)


class Dealer:
    """A DEALER socket connected to one Router; reconnects by itself.

    Attributes:
        num_corrupt: frames dropped because they were no message of the union.
    """

    def __init__(
        self,
        endpoint: str,
        identity: bytes,
        decoder: Decoder,
        *,
        max_frame_bytes: int = MAX_CLIENT_FRAME_BYTES,
        high_water: int = HIGH_WATER,
        is_monitored: bool = False,
        curve: CurveKeys | None = None,
    ) -> None:
        """Connect; the peer need not be there yet.

        Args:
            endpoint: of the Router.
            identity: by which the Router knows this socket, also after a reconnect.
            decoder: of the union of messages that may arrive.
            max_frame_bytes: larger frames are refused in both directions.
            high_water: messages queued.
            is_monitored: count connections, see ``connections``.
            curve: keys for tcp.

        Raises:
            ConfigError: an endpoint that cannot be used.
        """
        check_endpoint(endpoint, curve)
        self._decoder = decoder
        self._max_frame_bytes = max_frame_bytes
        self._high_water = high_water
        self.num_corrupt = 0
        self._num_connections = 0
        self._monitor: zmq.Socket[bytes] | None = None
        self._socket = zmq_context.acquire().socket(zmq.DEALER)
        try:
            apply_options(
                self._socket, max_frame_bytes=max_frame_bytes, high_water=high_water, curve=curve
            )
            self._socket.routing_id = identity
            if is_monitored:
                self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._socket.connect(endpoint)
        except BaseException:
            self.close()
            raise

    def send(self, message: Frame) -> bool:
        """Queue a message; False when the queue is full.

        While the peer is away messages wait here and go to whoever binds its address next.

        Raises:
            InvalidRequest: the message cannot be sent, see ``encode_bounded``.
        """
        frame = encode_bounded(message, self._max_frame_bytes)
        try:
            self._socket.send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def tell(self, message: Frame) -> None:
        """Queue a message that must not be lost.

        Raises:
            RingFull: the peer has been away for a whole queue of messages. The caller should end:
                its replacement introduces itself anew, and everybody tells everything again.
        """
        if not self.send(message):
            raise RingFull(
                "the queue to another process is full",
                value=type(message).__name__,
                limit=f"{self._high_water} messages",
                remedy="See with `hybridgen ps` whether that process runs",
            )

    def receive(self) -> Any | None:
        """The next message, or None when there is none now."""
        for _ in range(_MAX_CORRUPT_IN_A_ROW):
            frames = _receive_frames(self._socket, 1)
            if frames is None:
                return None
            try:
                return self._decoder(frames[0])
            except MessageCorrupt:
                self.num_corrupt += 1
        return None

    def take(self) -> Any | None:
        """The message that ``look`` has just told of; None when it was none of the union."""
        try:
            return self._decoder(_take_frames(self._socket, 1)[0])
        except MessageCorrupt:
            self.num_corrupt += 1
        except zmq.Again:  # its sender has left meanwhile
            pass
        return None

    def look(self) -> tuple[bool, bool]:
        """Whether there is something to read, and whether there is room to send."""
        events = int(self._socket.getsockopt(zmq.EVENTS))
        return bool(events & _POLLIN), bool(events & _POLLOUT)

    def connections(self) -> int:
        """How often a connection was established so far; more than before means a reconnect.

        Needs ``is_monitored``; a Poller then also wakes for each new connection.
        """
        while self._monitor is not None and self._monitor.poll(0):
            recv_monitor_message(self._monitor, zmq.NOBLOCK)
            self._num_connections += 1
        return self._num_connections

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """What a Poller watches."""
        return (self._socket,) if self._monitor is None else (self._socket, self._monitor)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Of the sockets, for an event loop: readable once something has changed since ``look``."""
        return tuple(int(socket.getsockopt(zmq.FD)) for socket in self.sockets)

    def close(self) -> None:
        """Close at once, dropping what is queued; safe to repeat."""
        if self._socket.closed:
            return
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close()
            self._monitor = None
        self._socket.close()
        zmq_context.release()


class HasSockets(Protocol):
    """A Router or a Dealer."""

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """The sockets behind it."""


class HasFileno(Protocol):
    """A doorbell, a control socket, anything with a descriptor."""

    def fileno(self) -> int:
        """The descriptor behind it."""


class Poller:
    """Waits for several routers, dealers and descriptors at once."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._things: dict[Any, Any] = {}

    def add(self, thing: HasSockets | HasFileno) -> None:
        """Watch it for something to read."""
        for key in _keys(thing):
            self._poller.register(key, zmq.POLLIN)
            self._things[key] = thing

    def remove(self, thing: HasSockets | HasFileno) -> None:
        """Watch it no more; call before closing it."""
        for key in [key for key, owner in self._things.items() if owner is thing]:
            self._poller.unregister(key)
            del self._things[key]

    def poll(self, timeout_s: float) -> set[Any]:
        """The things that are ready, after at most ``timeout_s``; empty when none is."""
        timeout_ms = math.ceil(max(0.0, timeout_s) * 1000)
        return {self._things[key] for key, _ in self._poller.poll(timeout_ms)}


def encode_bounded(message: Frame, max_frame_bytes: int) -> bytes:
    """The frame of a message.

    Raises:
        InvalidRequest: it is larger than the peer accepts, or holds something that cannot be sent,
            such as half of a surrogate pair.
    """
    try:
        frame = encode(message)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise InvalidRequest(
            f"a {type(message).__name__} cannot be sent: {error}",
            remedy="Pass valid text and numbers of at most 64 bits",
        ) from None
    if len(frame) > max_frame_bytes:
        raise InvalidRequest(
            f"a {type(message).__name__} is too large",
            value=f"{len(frame)} bytes",
            limit=max_frame_bytes,
            remedy="Send a shorter prompt",
        )
    return frame


def _keys(thing: HasSockets | HasFileno) -> tuple[Any, ...]:
    sockets: tuple[Any, ...] | None = getattr(thing, "sockets", None)
    return sockets if sockets is not None else (thing.fileno(),)  # type: ignore[union-attr]


def _receive_frames(socket: zmq.Socket[bytes], num_frames: int) -> list[bytes] | None:
    """The frames of the next message; surplus ones turn its last frame into an unreadable one."""
    # Asking is several times cheaper than the exception that an empty socket raises.
    if not int(socket.getsockopt(zmq.EVENTS)) & _POLLIN:
        return None
    try:
        return _take_frames(socket, num_frames)
    except zmq.Again:
        return None


def _take_frames(socket: zmq.Socket[bytes], num_frames: int) -> list[bytes]:
    frames = [socket.recv(_NOBLOCK)]
    num_surplus = 0
    if num_frames == 2:
        frames.append(socket.recv(_NOBLOCK))  # a router puts the identity before what was sent
    while socket.getsockopt(zmq.RCVMORE):
        part = socket.recv(_NOBLOCK)
        if len(frames) < num_frames:
            frames.append(part)
        else:
            num_surplus += 1
    if num_surplus or len(frames) < num_frames:
        frames = [*frames[: num_frames - 1], b""]
    return frames
