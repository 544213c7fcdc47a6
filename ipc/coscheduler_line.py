"""A worker's line to the coscheduler: messages in numbered frames, links checked when asked."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import zmq

from hybridgen.ipc.channel import Dealer
from hybridgen.ipc.link_end import WorkerEnd
from hybridgen.ipc.runtime_dir import Endpoints
from hybridgen.messages import Decoder, Message, Stamped, WorkerSpec


class CoschedulerLine:
    """One socket; nothing here blocks.

    Args:
        spec: of this worker.
        orders: union of the messages that it takes.
    """

    def __init__(self, spec: WorkerSpec, orders: Any) -> None:
        self._dealer = Dealer(
            Endpoints(Path(spec.runtime_dir)).workers,
            f"{spec.role}-{spec.index}".encode(),
            Decoder(Stamped[orders]),
        )
        self._end = WorkerEnd(spec.incarnation)
        self._orders: deque[Any] = deque()  # of the last frame

    def tell(self, *messages: Message) -> None:
        """Queue a frame for the coscheduler.

        Raises:
            RingFull: it has been away for a whole queue of messages; this process should end.
        """
        self._dealer.tell(self._end.stamp(*messages))
        self._end.sent()

    def receive(self) -> Any | None:
        """The next order, or None when there is none now."""
        while not self._orders and (frame := self._dealer.receive()) is not None:
            orders, answer = self._end.hear(frame)
            if answer is not None:
                self.tell(answer)
            self._orders.extend(orders)
        return self._orders.popleft() if self._orders else None

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """What a Poller watches."""
        return self._dealer.sockets

    def close(self) -> None:
        """Close the socket."""
        self._dealer.close()
