"""One end of a link between the coscheduler and another process of the tree: numbers on frames.

::

    Stamped(sender 3, receiver 2, number 17, num_missed 0, [message, message])
            └ incarnations ──┘    └ counts from 1 for each pair of them

What a process has to say at once to another goes in one frame: it is taken, dropped or lost whole.

A frame is taken only when its number is above all before it and its pair is not older: a repeat, a
frame that was overtaken, and whatever a dead process said or was told are dropped and counted. A
number that leaves some out shows a loss, and the other end learns of it by ``num_missed``. What was
lost is not sent again: the coscheduler asks the process to introduce itself, and both tell each
other how things stand (``Recovery.doubt``), as after a death. Until it is asked, a worker follows
no more orders, since they may rest on one that it never got.

``CheckLink`` and its answer are numbered, too, and so show the loss of the last frame before them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridgen.messages import UNASKED, AttachWorker, CheckLink, LinkChecked, Stamped


class LinkEnd:
    """Numbers what goes out and judges what comes in.

    Args:
        incarnation: of this process, from 1.

    Attributes:
        incarnation: of this process.
        num_repeated: frames dropped because they came twice, too late, or from the dead.
        num_missed: frames of the other side that never came, or were overtaken.
    """

    def __init__(self, incarnation: int) -> None:
        self.num_repeated = 0
        self.num_missed = 0
        self.incarnation = incarnation
        self._peer = 0  # its incarnation, as far as it was heard
        self._num_sent = 0
        self._pair = (0, 0)  # sender and receiver of the frames that come
        self._last = 0  # number of the last one taken
        self._num_missed_here = 0  # of this pair
        self._num_missed_there = 0  # as the other side says
        self._has_loss = False

    def stamp(self, *messages: Any) -> Stamped[Any]:
        """The frame that carries ``messages``; followed by ``sent``, if it could be sent."""
        number = self._num_sent + 1
        return Stamped(self.incarnation, self._peer, number, self._num_missed_here, [*messages])

    def sent(self) -> None:
        """The last frame is on its way."""
        self._num_sent += 1

    def expect(self, incarnation: int) -> None:
        """The other end has this incarnation, or a later one; what goes out is for that."""
        if incarnation > self._peer:
            self._peer, self._num_sent, self._num_missed_there = incarnation, 0, 0

    def take(self, frame: Stamped[Any]) -> list[Any]:
        """The messages in ``frame``; none when it counts no more."""
        pair = (frame.sender, frame.receiver)
        is_for_another = frame.receiver not in (0, self.incarnation)
        if frame.sender > self._peer:  # heard of, whomever this is meant for
            self._peer, self._num_sent, self._num_missed_there = frame.sender, 0, 0
        is_old = (pair, frame.number) <= (self._pair, self._last)
        if is_old or is_for_another:
            self.num_repeated += 1
            return []
        if pair != self._pair:
            self._pair, self._num_missed_here = pair, 0
            # Who does not know this process yet may have counted for its predecessor.
            self._last = frame.number - 1 if frame.receiver == 0 else 0
        num_skipped = frame.number - self._last - 1
        self.num_missed += num_skipped
        self._num_missed_here += num_skipped
        self._last = frame.number
        self._has_loss |= num_skipped > 0 or frame.num_missed > self._num_missed_there
        self._num_missed_there = frame.num_missed
        return frame.messages

    def take_loss(self) -> bool:
        """Whether anything was lost in either direction since the last call."""
        has_loss, self._has_loss = self._has_loss, False
        return has_loss


class Heard(NamedTuple):
    """What a worker makes of a frame."""

    orders: list[Any]
    """To be followed."""
    answer: LinkChecked | None
    """To be sent at once."""


class WorkerEnd(LinkEnd):
    """A worker's end: what it is told counts only as long as nothing of it was lost."""

    def __init__(self, incarnation: int) -> None:
        super().__init__(incarnation)
        self._is_deaf = False

    def hear(self, frame: Stamped[Any]) -> Heard:
        """What to do about ``frame``."""
        if 0 < frame.receiver < self.incarnation:
            self.take(frame)
            is_asked = any(isinstance(message, AttachWorker) for message in frame.messages)
            return Heard([UNASKED] if is_asked else [], None)  # nobody has heard of this one yet
        num_missed = self.num_missed
        messages = self.take(frame)
        is_answer_due = self.num_missed > num_missed
        self._is_deaf |= is_answer_due
        orders = []
        for message in messages:
            if isinstance(message, AttachWorker):
                self._is_deaf = is_answer_due = False  # its answer says more
                orders.append(message)
            elif isinstance(message, CheckLink):
                is_answer_due = True
            elif not self._is_deaf:
                orders.append(message)
        return Heard(orders, LinkChecked() if is_answer_due else None)
