"""Which samplers can take rows now, as the board shows it."""

from __future__ import annotations

from hybridgen.ipc.board import Board, ProcessState
from hybridgen.workers.lifecycle import WorkerContext


class LiveLanes:
    """The lanes whose samplers are ready.

    Attributes:
        ready: those lanes; empty when no sampler is.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._board = Board(context.segment("board").buf)
        self._lines = [
            line
            for line, name in enumerate(context.spec.worker_names)
            if name.startswith("sampler-")
        ]
        self.ready: list[int] = []

    def changed(self) -> list[int] | None:
        """The lanes to deal rows over, if they are others than at the last call.

        All of them when none is ready: one will be back, and does what it finds in the ring.
        """
        ready = [
            lane
            for lane, line in enumerate(self._lines)
            if self._board.state(line) is ProcessState.READY
        ]
        if ready == self.ready:
            return None
        self.ready = ready
        return ready or list(range(len(self._lines)))
