"""One connection of the pump thread."""

from __future__ import annotations

from collections import deque
from typing import Any

from hybridgen.client.address import Address
from hybridgen.client.peer import Peer
from hybridgen.ipc.channel import Dealer


class Link:
    """A dealer, and the messages that its full queue did not take yet."""

    def __init__(self, peer: Peer, address: Address) -> None:
        self.peer = peer
        self.dealer = Dealer(
            address.endpoint(peer), address.identity, address.decoder(peer), is_monitored=True
        )
        self.waiting: deque[Any] = deque()
        self._num_connections = 0

    def has_new_connection(self) -> bool:
        """Whether a connection was made since the last call."""
        num_connections = self.dealer.connections()
        is_new = num_connections > self._num_connections
        self._num_connections = num_connections
        return is_new

    def flush(self) -> None:
        """Send what the queue takes.

        Raises:
            InvalidRequest: the first waiting message cannot be sent.
        """
        while self.waiting and self.dealer.send(self.waiting[0]):
            self.waiting.popleft()
