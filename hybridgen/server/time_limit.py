"""A time limit that many tasks share, each for a stretch of its work."""

from __future__ import annotations

import asyncio
from types import TracebackType

from hybridgen.server.alarms import Alarms


class TimeLimit:
    """Means what ``asyncio.timeout`` means, without a timer of the loop for every use.

    ::

        with limit.stretch():
            await what_may_take_too_long()

    Args:
        limit_s: for each stretch.
    """

    def __init__(self, limit_s: float) -> None:
        self._alarms: Alarms[Stretch] = Alarms(limit_s, Stretch.interrupt)

    def stretch(self) -> Stretch:
        """A context manager around what must be done in time; enter it in the task that does it."""
        return Stretch(self._alarms)


class Stretch:
    """Work of one task under a limit.

    Raises (on leaving):
        TimeoutError: in place of the interruption.
    """

    __slots__ = ("_alarms", "_is_over", "_num_cancels", "_task")

    def __init__(self, alarms: Alarms[Stretch]) -> None:
        self._alarms = alarms
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit is for what a task does")
        self._task = task
        self._num_cancels = task.cancelling()
        self._alarms.set(self)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._alarms.call_off(self)
        if not self._is_over:
            return
        # A cancellation from elsewhere at the same moment stays one.
        is_alone = self._task.uncancel() <= self._num_cancels
        if is_alone and exc_type is asyncio.CancelledError:
            raise TimeoutError from exc

    def interrupt(self) -> None:
        """The time is up."""
        self._is_over = True
        self._task.cancel()
