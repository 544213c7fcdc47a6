"""The supervisor's line to the coscheduler: deaths and the drain order go out, one answer back."""

from __future__ import annotations

from collections import deque

from hybridgen.clock import Clock
from hybridgen.ipc.channel import Dealer
from hybridgen.ipc.runtime_dir import SUPERVISOR_IDENTITY
from hybridgen.messages import Decoder, DrainTree, SupervisorFact, TreeDrained, WorkerDied

#: A coscheduler that is being replaced takes no messages; they are offered again after this.
RETRY_S = 0.05
#: Older reports than this many are worth nothing to a coscheduler that was away so long.
MAX_WAITING = 256


class CoschedulerLink:
    """Keeps what the coscheduler cannot take at the moment, in order.

    Args:
        endpoint: where the coscheduler listens for the tree's own processes.
        clock: seconds that never jump.
    """

    def __init__(self, endpoint: str, clock: Clock) -> None:
        self.socket = Dealer(endpoint, SUPERVISOR_IDENTITY, Decoder(SupervisorFact))
        self._clock = clock
        self._waiting: deque[WorkerDied | DrainTree] = deque(maxlen=MAX_WAITING)
        self.retry_at_s: float | None = None

    def send(self, message: WorkerDied | DrainTree) -> None:
        """Send now, or as soon as the coscheduler takes it."""
        self._waiting.append(message)
        self.flush()

    def flush(self) -> None:
        """Offer what waits again."""
        while self._waiting:
            if not self.socket.send(self._waiting[0]):
                self.retry_at_s = self._clock() + RETRY_S
                return
            self._waiting.popleft()
        self.retry_at_s = None

    def is_drained(self) -> bool:
        """The coscheduler has answered DrainTree since the last call."""
        is_drained = False
        while (fact := self.socket.receive()) is not None:
            is_drained = is_drained or isinstance(fact, TreeDrained)
        return is_drained

    def close(self) -> None:
        """Release the socket."""
        self.socket.close()
