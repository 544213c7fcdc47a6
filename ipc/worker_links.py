"""The coscheduler's side of its links to the tree's processes: one socket, numbered frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import zmq

from hybridgen.ipc.channel import Router, SendResult
from hybridgen.ipc.link_end import LinkEnd
from hybridgen.messages import Decoder, Message, Stamped, WorkerFact


class Arrival(NamedTuple):
    """A message that counts."""

    name: str
    """Of the process that sent it."""
    has_loss: bool
    """Something before its frame was lost on the way to or from that process."""
    fact: Any


class WorkerLinks:
    """Nothing here blocks.

    Args:
        endpoint: to bind.
        incarnation: of this coscheduler.
        names: of all processes that it listens to; frames of others are dropped.
    """

    def __init__(self, endpoint: str, incarnation: int, names: Iterable[str]) -> None:
        self._router = Router([endpoint], Decoder(Stamped[WorkerFact]))
        self._ends = {name.encode(): LinkEnd(incarnation) for name in names}
        self._arrivals: deque[Arrival] = deque()  # of the last frame
        self._num_strange = 0

    def send(self, name: str, *messages: Message) -> SendResult:
        """Queue a frame for a process."""
        identity = name.encode()
        end = self._ends[identity]
        result = self._router.send(identity, end.stamp(*messages))
        if result is SendResult.SENT:
            end.sent()
        return result

    def receive(self) -> Arrival | None:
        """The next message, or None when there is none now."""
        arrivals = self._arrivals
        while not arrivals and (received := self._router.receive()) is not None:
            identity, frame = received
            end = self._ends.get(identity)
            if end is None:
                self._num_strange += 1
                continue
            name = identity.decode()
            arrivals.extend(Arrival(name, end.take_loss(), fact) for fact in end.take(frame))
        return arrivals.popleft() if arrivals else None

    @property
    def num_corrupt(self) -> int:
        """Frames dropped: no messages, or of nobody who belongs here."""
        return self._router.num_corrupt + self._num_strange

    @property
    def num_repeated(self) -> int:
        """Frames dropped: doubled, overtaken, or from the dead."""
        return sum(end.num_repeated for end in self._ends.values())

    @property
    def num_missed(self) -> int:
        """Frames that never came."""
        return sum(end.num_missed for end in self._ends.values())

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """What a Poller watches."""
        return self._router.sockets

    def close(self) -> None:
        """Unbind and close."""
        self._router.close()
