"""Looks at the gateway's connections from below, and stops those that flood it.

The HTTP server keeps its sockets to itself, but they are files of this process: the kernel tells
how much arrived on each. A look costs some microseconds a connection, so there is none while the
process is idle, apart from a rare one for connections that never ask for anything.

Who is cut and connects again at once is let in as before, but at first the kernel drops what comes
on new connections from there (the listening socket's filter); each look lets some be heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import struct
import termios
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from hybridgen.server.reconnects import Network, Reconnects, WaitingRoom, network_of, shown
from hybridgen.server.traffic import Peer, Traffic, TrafficJudge, Verdict
from hybridgen.workers.packet_filter import hear_again, hear_later, hear_nothing

logger = logging.getLogger(__name__)

#: A look every so often while the process uses more than this share of a CPU.
LOOK_S = 0.05
MIN_BUSY_SHARE = 0.1
#: And in any case.
IDLE_LOOK_S = 5.0
#: Looking may take this share of a CPU.
MAX_LOOK_SHARE = 0.05
#: Others have their turn after so many files, a millisecond or two.
FILES_AT_ONCE = 100
#: What goes wrong is logged this often.
COMPLAINT_PAUSE_S = 60.0
#: A flood that is cut comes back at once; so first it gets no answer for a while.
STALL_S = 10.0
MAX_STALLED = 256

_TCP_INFO_BYTES = 136
_BYTES_RECEIVED_AT = 128
_SOCKET_LINK = "socket:"
#: A file that is closed meanwhile, or whose number another one has by now.
_GONE = frozenset({errno.ENOENT, errno.EBADF, errno.ENOTSOCK})


class Connection(NamedTuple):
    """One accepted connection."""

    socket: socket.socket
    peer: Peer
    num_read: int | None
    """Bytes that arrived and were taken from the kernel; None where it would not tell."""


class ConnectionWatch:
    """Ends connections that cost more than they ask for.

    Args:
        port: where the server accepts.
        traffic: what the application has seen.
        listener: accepts there; what a predecessor that died left on it is taken away.
    """

    def __init__(self, port: int, traffic: Traffic, listener: socket.socket) -> None:
        self._port = port
        self._listener = listener
        self._judge = TrafficJudge(traffic)
        self._stalled: dict[Peer, float] = {}
        self._reconnects = Reconnects()
        self._room = WaitingRoom()
        self._due: frozenset[Peer] = frozenset()
        self._barred: frozenset[Network] = frozenset()
        hear_again(listener)
        self._next_complaint_s = 0.0

    async def run(self) -> None:
        """Look and cut for as long as the task lives."""
        pause_s, next_look_s, cpu_s = LOOK_S, 0.0, time.process_time()
        while True:
            await asyncio.sleep(pause_s)
            before_s, cpu_s = cpu_s, time.process_time()
            now_s = time.monotonic()
            is_idle = cpu_s - before_s < MIN_BUSY_SHARE * pause_s
            if is_idle and now_s < next_look_s and not (self._room or self._reconnects):
                continue
            look_s = 0.0
            try:
                look_s = await self.look(now_s)
            except OSError as error:  # no file is left to look with, say: the next look may do
                self._complain(now_s, f"the connections could not be looked at: {error}")
            next_look_s = now_s + IDLE_LOOK_S
            is_crowded = bool(self._room.crowded())  # they keep the places of others
            pause_s = LOOK_S if is_crowded else max(LOOK_S, look_s / MAX_LOOK_SHARE)

    async def look(self, now_s: float) -> float:
        """Look at every connection once; the seconds of CPU that it took.

        Raises:
            OSError: not all of them could be seen; so nobody is taken for gone.
        """
        known, peers, num_cut = self._judge.peers(), set[Peer](), Counter[str]()
        self._reconnects.pardon(self._room.crowded(), now_s)
        self._due = self._room.call(now_s)
        files, look_s = os.listdir("/proc/self/fd"), 0.0
        for first in range(0, len(files), FILES_AT_ONCE):
            started_s = time.thread_time()
            for connection in accepted(self._port, files[first : first + FILES_AT_ONCE]):
                peers.add(connection.peer)
                num_cut[self._treat(connection, now_s)] += 1
            look_s += time.thread_time() - started_s
            await asyncio.sleep(0)
        gone = known - peers  # and none of those who came during the look
        self._reconnects.lost(self._judge.quitters(gone, now_s), now_s)
        self._bar(self._reconnects.barred(now_s), now_s)
        self._judge.forget(gone)
        self._room.forget(gone)
        for peer in gone:
            self._stalled.pop(peer, None)
        self._report(num_cut, now_s)
        return look_s

    def _report(self, num_cut: Counter[str], now_s: float) -> None:
        if num_cut["untold"]:
            self._complain(now_s, f"{num_cut['untold']} connections could not be described")
        if num_cut["flood"] or num_cut["silent"]:
            logger.warning(
                "connections cut: %d that flooded, %d that never asked for anything",
                num_cut["flood"],
                num_cut["silent"],
            )

    def _complain(self, now_s: float, what: str) -> None:
        if now_s >= self._next_complaint_s:
            self._next_complaint_s = now_s + COMPLAINT_PAUSE_S
            logger.warning("%s", what)

    def _bar(self, networks: frozenset[Network], now_s: float) -> None:
        if networks == self._barred:
            return
        if not networks:
            hear_again(self._listener)
        elif not hear_later(self._listener, networks):
            self._complain(now_s, "the kernel does not let new connections wait")
        for network in networks - self._barred:
            logger.warning(
                "%s connects again and again without a request: new connections from there wait",
                shown(network),
            )
        self._barred = networks

    def _treat(self, connection: Connection, now_s: float) -> Verdict | Literal["untold"]:
        stalled_s = self._stalled.get(connection.peer)
        if stalled_s is not None:
            if now_s - stalled_s >= STALL_S:
                _shut(connection.socket)
            return "fine"
        if connection.num_read is None:
            return "untold"
        verdict = self._judge.verdict(connection.peer, connection.num_read, now_s)
        is_stalled = (
            verdict == "flood"
            and len(self._stalled) < MAX_STALLED
            and hear_nothing(connection.socket)
        )
        if is_stalled:
            self._stalled[connection.peer] = now_s
            self._room.leave(connection.peer)
        elif verdict != "fine":
            _shut(connection.socket)
        elif self._judge.has_asked(connection.peer):
            self._room.leave(connection.peer)  # it was never kept from being heard
        else:
            self._hear_in_turn(connection)
        return verdict

    def _hear_in_turn(self, connection: Connection) -> None:
        peer = connection.peer
        # Of a network that is not known, or no longer, the filter may be a predecessor's.
        if peer in self._due or not self._reconnects.is_known(network_of(peer)):
            hear_again(connection.socket)
            self._room.heard(peer)
        else:
            self._room.enter(peer)


def accepted(port: int, files: Iterable[str]) -> Iterator[Connection]:
    """The connections to its own ``port`` among these files of the process.

    Raises:
        OSError: one of them cannot be looked at.
    """
    for file in files:
        one = _copy(file)
        if one is None:
            continue
        with one:
            connection = _describe(one, port)
            if connection is not None:
                yield connection


def _copy(file: str) -> socket.socket | None:
    """Of a socket: its number may belong to another one by the time that it is used."""
    try:
        if not os.readlink(f"/proc/self/fd/{file}").startswith(_SOCKET_LINK):
            return None
        fd = os.dup(int(file))
        try:
            return socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def _describe(one: socket.socket, port: int) -> Connection | None:
    name = one.getsockname()
    if not isinstance(name, tuple) or name[1] != port:
        return None
    try:
        peer = one.getpeername()
    except OSError as error:
        if error.errno == errno.ENOTCONN:  # the listening socket, or it was reset
            return None
        raise
    address, _, _ = peer[0].partition("%")  # the server does not tell the interface
    return Connection(one, (address, peer[1]), _num_read(one))


def _num_read(one: socket.socket) -> int | None:
    try:
        facts = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        (num_received,) = struct.unpack_from("Q", facts, _BYTES_RECEIVED_AT)
        (num_unread,) = struct.unpack("i", fcntl.ioctl(one, termios.FIONREAD, bytes(4)))
    except (OSError, struct.error):  # an old kernel tells less; reported by who looks
        return None
    return int(num_received - num_unread)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)
