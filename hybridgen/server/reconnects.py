"""Whose connections end one after the other without a request. Pure: told who left, it says whom.

The HTTP server under the application ends a connection that breaks the protocol at once. Whoever
does nothing else connects again, thousands of times a second, and each time costs a greeting and a
look at some frames. So new connections from there are heard some at a time, and a little later.

That only slows those who wait for an answer. Where connections come in faster than they are heard,
they are heard at once, as everybody's: to keep them would cost more, and the places of others.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Collection, Iterable

import msgspec

from hybridgen.server.traffic import Peer

Network = bytes
"""Of what one attacker may have many addresses: an IPv4 address, or half an IPv6 address."""

#: So many at once that were seen and ended without a request bar their network, or this many a
#: second: probes of a load balancer, which come from where its requests come from, are fewer.
MAX_LOST = 3
LOST_PER_S = 1.0
#: Whoever is barred is let in again after so long without one: barred, attackers are slow.
MEMORY_S = 3.0
#: Of one network so many connections are heard a second.
HEARD_PER_S = 320
#: Where so many wait, nobody has to for this long.
CROWD = 300
PARDON_S = 60.0
#: Networks at once; further ones are served as everybody is.
MAX_BARRED = 64
_IPV4_BYTES, _IPV6_NETWORK_BYTES = 4, 8


def network_of(peer: Peer) -> Network:
    """Where a connection comes from."""
    address = peer[0]
    if ":" not in address:
        return socket.inet_pton(socket.AF_INET, address)
    whole = socket.inet_pton(socket.AF_INET6, address)
    is_ipv4 = whole.startswith(bytes(10) + b"\xff\xff")
    return whole[-_IPV4_BYTES:] if is_ipv4 else whole[:_IPV6_NETWORK_BYTES]


def shown(network: Network) -> str:
    """For people."""
    if len(network) == _IPV4_BYTES:
        return socket.inet_ntop(socket.AF_INET, network)
    return f"{socket.inet_ntop(socket.AF_INET6, network + bytes(_IPV6_NETWORK_BYTES))}/64"


class _Lost(msgspec.Struct):
    """A bucket that leaks LOST_PER_S; once full it bars, until nothing came for MEMORY_S."""

    last_s: float
    num: float = 0.0
    is_barred: bool = False
    pardoned_until_s: float = -math.inf

    def add(self, now_s: float) -> None:
        """One more."""
        quiet_s = now_s - self.last_s
        left = max(0.0, self.num - LOST_PER_S * quiet_s)
        self.num, self.last_s = min(left + 1, MAX_LOST), now_s
        self.is_barred = self.num >= MAX_LOST or (self.is_barred and quiet_s <= MEMORY_S)


class Reconnects:
    """Networks whose connections end without a request.

    True while there is one whose new connections wait.
    """

    def __init__(self) -> None:
        self._lost: dict[Network, _Lost] = {}

    def __bool__(self) -> bool:
        return any(map(self.is_known, self._lost))

    def lost(self, peers: Iterable[Peer], now_s: float) -> None:
        """These have left without a request."""
        for peer in peers:
            self._lost.setdefault(network_of(peer), _Lost(now_s)).add(now_s)

    def barred(self, now_s: float) -> frozenset[Network]:
        """Whose new connections should not be heard at first."""
        # One that connects as the bar is lifted must still be found by the next look.
        for network in [n for n, lost in self._lost.items() if now_s - lost.last_s > 2 * MEMORY_S]:
            del self._lost[network]
        barred = (
            network
            for network, lost in self._lost.items()
            if lost.is_barred and now_s - lost.last_s <= MEMORY_S
            if now_s >= lost.pardoned_until_s
        )
        return frozenset(itertools.islice(barred, MAX_BARRED))

    def pardon(self, networks: Iterable[Network], now_s: float) -> None:
        """Not to be barred for a while: their connections do not wait to be heard."""
        for network in networks:
            if lost := self._lost.get(network):
                lost.pardoned_until_s = now_s + PARDON_S

    def is_known(self, network: Network) -> bool:
        """Whether its connections are heard when it is their turn: it is barred, or was lately."""
        lost = self._lost.get(network)
        return lost is not None and lost.is_barred


class WaitingRoom:
    """Connections that wait to be heard, in the order in which they came.

    True while there is one.
    """

    def __init__(self) -> None:
        self._waiting: dict[Network, dict[Peer, None]] = {}
        self._heard: set[Peer] = set()
        self._called_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def enter(self, peer: Peer) -> None:
        """Wait, unless it was heard already."""
        if peer not in self._heard:
            self._waiting.setdefault(network_of(peer), {})[peer] = None

    def crowded(self) -> frozenset[Network]:
        """From where too many wait."""
        return frozenset(n for n, waiting in self._waiting.items() if len(waiting) >= CROWD)

    def call(self, now_s: float) -> frozenset[Peer]:
        """Whose turn it is; all of a crowd's."""
        num_each = max(1, int(HEARD_PER_S * min(1.0, now_s - self._called_s)))
        self._called_s = now_s
        return frozenset(
            itertools.chain.from_iterable(
                waiting if len(waiting) >= CROWD else itertools.islice(waiting, num_each)
                for waiting in self._waiting.values()
            )
        )

    def heard(self, peer: Peer) -> None:
        """It had its turn."""
        self.leave(peer)
        self._heard.add(peer)

    def forget(self, peers: Collection[Peer]) -> None:
        """These have left."""
        self._heard.difference_update(peers)
        for peer in peers:
            self.leave(peer)

    def leave(self, peer: Peer) -> None:
        """Take nobody's turn any more; safe for one that does not wait."""
        if not self._waiting:
            return
        if waiting := self._waiting.get(network_of(peer)):
            waiting.pop(peer, None)
            if not waiting:
                del self._waiting[network_of(peer)]
