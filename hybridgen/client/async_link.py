"""One connection of an asyncio client: a link whose sockets the event loop watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from hybridgen.client.address import Address
from hybridgen.client.link import Link
from hybridgen.client.peer import Peer
from hybridgen.errors import InvalidRequest

_MAX_TURNS = 64  # messages in a row; then the other callbacks of the loop get their turn


class AsyncLink:
    """Make it, use it and close it on the running loop.

    Args:
        on_connect: called with the peer at every connection.
        on_message: called with the peer and each message.
        on_refused: called with a message that cannot be sent, and the error.
        on_broken: called with what one of the others raised; the link does nothing more then.
    """

    def __init__(
        self,
        peer: Peer,
        address: Address,
        *,
        on_connect: Callable[[Peer], None],
        on_message: Callable[[Peer, Any], None],
        on_refused: Callable[[Any, InvalidRequest], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._link = Link(peer, address)
        self._on_connect = on_connect
        self._on_message = on_message
        self._on_refused = on_refused
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._is_due = False
        exchange = partial(self._guarded, self._exchange)
        greet = partial(self._guarded, self._greet)
        for descriptor, callback in zip(
            self._link.dealer.descriptors, (exchange, greet), strict=True
        ):
            self._loop.add_reader(descriptor, callback)
        # A descriptor tells of changes only: what was there before is looked for once.
        self._loop.call_soon(greet)
        self._exchange_soon()

    def send(self, message: Any) -> None:
        """Send in this turn of the loop, or as soon as the queue has room; the order is kept."""
        self._link.waiting.append(message)
        self._exchange_soon()

    def close(self) -> None:
        """Disconnect at once, dropping what is queued; safe to repeat."""
        if self._is_open:
            self._is_open = False
            for descriptor in self._link.dealer.descriptors:
                self._loop.remove_reader(descriptor)
            self._link.dealer.close()

    def _exchange_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._guarded, self._exchange)

    def _exchange(self) -> None:
        """Send and receive what can be."""
        self._is_due = False
        link, dealer = self._link, self._link.dealer
        for _ in range(_MAX_TURNS):
            self._flush()
            # Sending, too, may take in what the descriptor would have told of.
            is_readable, has_room = dealer.look()
            if is_readable:
                message = dealer.take()
                if message is not None:
                    self._on_message(link.peer, message)
                    if not self._is_open:
                        return
            elif not (has_room and link.waiting):
                return
        self._exchange_soon()

    def _flush(self) -> None:
        try:
            self._link.flush()
        except InvalidRequest as error:
            self._on_refused(self._link.waiting.popleft(), error)

    def _greet(self) -> None:
        if self._link.has_new_connection():
            self._on_connect(self._link.peer)

    def _guarded(self, work: Callable[[], None]) -> None:
        if not self._is_open:
            return
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # nobody awaits a callback: it must be told
            self.close()
            self._on_broken(error)
