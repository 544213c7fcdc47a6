"""Which connections cost more than they ask for. Pure: told what arrived, it says whom to cut.

The HTTP server under the application answers or skips every frame that a client may send (pings,
settings, priorities, frames of unknown kinds) without telling anybody, at any rate. What the kernel
received on a connection beyond what the application has seen of it gives such a client away.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

Peer = tuple[str, int]
"""Address and port of the other end, which name a connection for as long as it is open."""

Verdict = Literal["fine", "silent", "flood"]
"""``silent``: it never asked for anything."""

#: What a connection may send besides requests, at once and per second: handshakes, heads in their
#: own encoding, window updates, pings; and bodies on their way through the server's windows.
FREE_BYTES = 4 << 20
FREE_BYTES_PER_S = 32 * 1024
#: TLS and framing of small pieces may double what is asked for, and a reader's window updates.
PER_SEEN_BYTE = 2
#: A connection must have brought its first request by then.
FIRST_REQUEST_S = 10.0
#: Browsers connect for requests that may come, and leave later than this.
SOON_S = 5.0


class Exchanged(msgspec.Struct):
    """What the application has seen of one connection."""

    num_bytes: int = 0
    """Of heads and bodies, both ways."""


class Traffic:
    """Every connection that has brought a request. Written by the application's loop only."""

    def __init__(self) -> None:
        self._by_peer: dict[Peer, Exchanged] = {}

    def of(self, peer: tuple[str, int | str] | None) -> Exchanged:
        """Where to count for a connection; for one without an address, nowhere that matters.

        Args:
            peer: as the server under the application tells it; some have a text for the port.
        """
        if peer is None:
            return Exchanged()
        key = (peer[0], int(peer[1]))
        exchanged = self._by_peer.get(key)
        if exchanged is None:
            exchanged = self._by_peer[key] = Exchanged()
        return exchanged

    def num_bytes(self, peer: Peer) -> int | None:
        """What was seen; ``None`` before the first request."""
        exchanged = self._by_peer.get(peer)
        return None if exchanged is None else exchanged.num_bytes

    def peers(self) -> set[Peer]:
        """Whom something is known of."""
        return set(self._by_peer)

    def forget(self, peers: Iterable[Peer]) -> None:
        """These have left."""
        for peer in peers:
            self._by_peer.pop(peer, None)


class TrafficJudge:
    """Compares what arrived with what was seen, connection by connection."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._since_s: dict[Peer, float] = {}

    def verdict(self, peer: Peer, num_received: int, now_s: float) -> Verdict:
        """What a connection is.

        Args:
            peer: its other end.
            num_received: bytes that have arrived on it and were read.
            now_s: the time, of any clock that does not jump.
        """
        age_s = now_s - self._since_s.setdefault(peer, now_s)
        seen = self._traffic.num_bytes(peer)
        allowed = FREE_BYTES + FREE_BYTES_PER_S * age_s + PER_SEEN_BYTE * (seen or 0)
        if num_received > allowed:
            return "flood"
        return "silent" if seen is None and age_s >= FIRST_REQUEST_S else "fine"

    def has_asked(self, peer: Peer) -> bool:
        """Whether a connection has brought a request."""
        return self._traffic.num_bytes(peer) is not None

    def quitters(self, gone: Iterable[Peer], now_s: float) -> list[Peer]:
        """Of those who have left: who did so soon, without ever asking for anything."""
        since_s = self._since_s
        soon = (peer for peer in gone if now_s - since_s.get(peer, -math.inf) < SOON_S)
        return [peer for peer in soon if not self.has_asked(peer)]

    def peers(self) -> set[Peer]:
        """Whom something is known of."""
        return self._traffic.peers() | self._since_s.keys()

    def forget(self, peers: Collection[Peer]) -> None:
        """These have left."""
        self._traffic.forget(peers)
        for peer in peers:
            self._since_s.pop(peer, None)
