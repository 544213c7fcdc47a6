"""Questions with one answer each: tokenize, health, the process list, stop."""

from __future__ import annotations

import math
from collections.abc import Callable

from hybridgen.client.limits import ClientLimits
from hybridgen.client.peer import Peer
from hybridgen.errors import ChannelTimeout, HybridGenError, PeerGone
from hybridgen.messages import ListProcesses, QueryHealth, StopTree, TokenizePrompt

#: One with a short time limit is said again so often within it, too.
SENT_PER_LIMIT = 4

Question = TokenizePrompt | QueryHealth | ListProcesses | StopTree


class OpenQuestion:
    """One question on its way."""

    __slots__ = ("message", "peer", "retry_at_s", "timeout_at_s", "timeout_s")

    def __init__(self, peer: Peer, message: Question, timeout_s: float, now_s: float) -> None:
        self.peer = peer
        self.message = message
        self.timeout_s = timeout_s
        self.timeout_at_s = now_s + timeout_s
        self.retry_at_s = math.inf

    def arm(self, resend_s: float, now_s: float) -> None:
        """The question was sent just now."""
        self.retry_at_s = now_s + min(resend_s, self.timeout_s / SENT_PER_LIMIT)

    def timed_out(self, is_connected: bool) -> HybridGenError:
        """The error when no answer came."""
        what = type(self.message).__name__
        limit = f"{self.timeout_s:g} s"
        remedy = "Look whether the server is up: hybridgen ps"
        if is_connected:
            message = f"no answer to {what} from the {self.peer}"
            return ChannelTimeout(message, limit=limit, remedy=remedy)
        message = f"the {self.peer} cannot be reached for {what}"
        return PeerGone(message, limit=limit, remedy=remedy)


class Questions:
    """All open questions, by request id."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._open: dict[bytes, OpenQuestion] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(
        self,
        peer: Peer,
        message: Question,
        timeout_s: float | None,
        now_s: float,
        *,
        is_connected: bool,
    ) -> None:
        """Open a question; ``timeout_s`` None takes the general limit.

        A connected peer is asked by the next ``due``, another one once it is connected.
        """
        limit_s = self._limits.answer_timeout_s if timeout_s is None else timeout_s
        question = OpenQuestion(peer, message, limit_s, now_s)
        if is_connected:
            question.retry_at_s = now_s
        self._open[message.request_id] = question

    def close(self, request_id: bytes) -> bool:
        """Take out an answered question; ``False`` when it was not open."""
        return self._open.pop(request_id, None) is not None

    def due(self, peer: Peer, now_s: float, *, is_new_connection: bool = False) -> list[Question]:
        """What to send (again) to a connected ``peer`` now."""
        due = []
        for question in self._open.values():
            is_wanted = is_new_connection or question.retry_at_s <= now_s
            if question.peer == peer and is_wanted:
                question.arm(self._limits.resend_s, now_s)
                due.append(question.message)
        return due

    def take_timed_out(
        self, now_s: float, is_connected: Callable[[Peer], bool]
    ) -> list[tuple[bytes, HybridGenError]]:
        """Close and return those whose time is up."""
        late = [
            (request_id, question.timed_out(is_connected(question.peer)))
            for request_id, question in self._open.items()
            if question.timeout_at_s <= now_s
        ]
        for request_id, _ in late:
            del self._open[request_id]
        return late

    def take_all(self) -> list[bytes]:
        """Close and return all."""
        keys = list(self._open)
        self._open.clear()
        return keys

    def next_due_s(self) -> float:
        """When the earliest time limit or repetition is due; infinity when there is none."""
        return min(
            (min(q.timeout_at_s, q.retry_at_s) for q in self._open.values()), default=math.inf
        )
