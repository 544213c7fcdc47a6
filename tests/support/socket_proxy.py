"""Fault proxies on real sockets: whoever connects to the front is passed on to the back.

It sits between a client or worker and the ROUTER that it looks for; identities are kept.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import zmq

from tests.support.fault_proxy import FaultProxy, Mishap, Mishaps

_POLL_MS = 1


class _Peer:
    """One identity: its socket to the back, and a proxy for each direction."""

    def __init__(self, back: zmq.Socket[bytes], chance: random.Random, mishaps: Mishaps) -> None:
        self.back = back
        self.there = FaultProxy(chance, mishaps)
        self.here = FaultProxy(chance, mishaps)


class SocketProxy:
    """Use as a context manager.

    Args:
        routes: front address → back address.
        mishaps: what happens on all of them.
        seed: chooses their course, as far as the sockets' timing does not.
    """

    def __init__(self, routes: Mapping[str, str], mishaps: Mishaps, seed: int) -> None:
        self._routes = routes
        self._mishaps = mishaps
        self._chance = random.Random(seed)
        self._context = zmq.Context()
        self._peers: dict[tuple[zmq.Socket[bytes], bytes], _Peer] = {}
        self._fronts: dict[zmq.Socket[bytes], str] = {}
        self._poller = zmq.Poller()
        for front, back in routes.items():
            socket = self._new_socket(zmq.ROUTER)
            socket.router_handover = True
            socket.bind(front)
            self._fronts[socket] = back
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="socket-proxy")

    def __enter__(self) -> SocketProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def num_mishaps(self, mishap: Mishap) -> int:
        """So many happened."""
        peers = list(self._peers.values())
        return sum(p.there.num_mishaps[mishap] + p.here.num_mishaps[mishap] for p in peers)

    def _new_socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._poller.poll(_POLL_MS)
            for front in self._fronts:
                while front.poll(0):
                    identity, frame = front.recv_multipart()
                    self._peer(front, identity).there.put(frame, _kind(frame))
            for (front, identity), peer in self._peers.items():
                while peer.back.poll(0):
                    frame = peer.back.recv()
                    peer.here.put(frame, _kind(frame))
                while (frame := peer.there.take()) is not None:
                    peer.back.send(frame)
                while (frame := peer.here.take()) is not None:
                    front.send_multipart((identity, frame))

    def _peer(self, front: zmq.Socket[bytes], identity: bytes) -> _Peer:
        peer = self._peers.get((front, identity))
        if peer is None:
            back = self._new_socket(zmq.DEALER)
            back.routing_id = identity
            back.connect(self._fronts[front])
            peer = self._peers[front, identity] = _Peer(back, self._chance, self._mishaps)
        return peer


def _kind(frame: bytes) -> str:
    message: Any = msgspec.msgpack.decode(frame)
    if isinstance(message, list) and not isinstance(message[0], str):
        message = message[-1][0]  # the first of what is in a Stamped
    return str(message["type"] if isinstance(message, dict) else message[0])
