"""The supervisor's line to the coscheduler: deaths and the drain order, said until answered."""

from __future__ import annotations

from collections import deque

from hybridgen.clock import Clock
from hybridgen.ipc.channel import Dealer
from hybridgen.ipc.link_end import LinkEnd
from hybridgen.ipc.runtime_dir import SUPERVISOR_IDENTITY
from hybridgen.messages import (
    DeathNoted,
    Decoder,
    DrainTree,
    Stamped,
    SupervisorFact,
    TreeDrained,
    WorkerDied,
)

#: A coscheduler that is being replaced takes no messages; they are offered again after this.
RETRY_S = 0.05
#: What has no answer by then is said again: it was lost with a coscheduler, or on the way.
REPEAT_S = 1.0
#: Older reports than this many are worth nothing to a coscheduler that was away so long.
MAX_WAITING = 256

_Order = WorkerDied | DrainTree
_DRAIN = ("", 0, 0)


class CoschedulerLink:
    """Keeps what the coscheduler has not answered, in order, and says it again.

    Args:
        endpoint: where the coscheduler listens for the tree's own processes.
        clock: seconds that never jump.
    """

    def __init__(self, endpoint: str, clock: Clock) -> None:
        self.socket = Dealer(endpoint, SUPERVISOR_IDENTITY, Decoder(Stamped[SupervisorFact]))
        self._clock = clock
        self._end = LinkEnd(1)
        self._waiting: deque[_Order] = deque(maxlen=MAX_WAITING)
        self._open: dict[tuple[str, int, int], _Order] = {}
        self._repeat_at_s = 0.0
        self.retry_at_s: float | None = None

    def expect(self, incarnation: int) -> None:
        """This coscheduler follows now, which says nothing to the supervisor before it is asked."""
        self._end.expect(incarnation)

    def send(self, message: _Order) -> None:
        """Send now, or as soon as the coscheduler takes it."""
        self._open[_key(message)] = message
        while len(self._open) > MAX_WAITING:
            del self._open[next(iter(self._open))]
        self._waiting.append(message)
        self.flush()

    def flush(self) -> None:
        """Offer again what waits, and what had no answer in time."""
        now_s = self._clock()
        if not self._waiting and now_s >= self._repeat_at_s:
            self._waiting.extend(self._open.values())
        while self._waiting:
            if not self.socket.send(self._end.stamp(self._waiting[0])):
                self.retry_at_s = now_s + RETRY_S
                return
            self._end.sent()
            self._waiting.popleft()
            self._repeat_at_s = now_s + REPEAT_S
        self.retry_at_s = self._repeat_at_s if self._open else None

    def is_drained(self) -> bool:
        """The coscheduler has answered DrainTree since the last call; takes other answers, too."""
        is_drained = False
        while (frame := self.socket.receive()) is not None:
            for fact in self._end.take(frame):
                if isinstance(fact, DeathNoted):
                    self._open.pop((fact.role, fact.index, fact.incarnation), None)
                elif isinstance(fact, TreeDrained):
                    is_drained = True
                    self._open.pop(_DRAIN, None)
        return is_drained

    def close(self) -> None:
        """Release the socket."""
        self.socket.close()


def _key(message: _Order) -> tuple[str, int, int]:
    if isinstance(message, DrainTree):
        return _DRAIN
    return message.role, message.index, message.incarnation
