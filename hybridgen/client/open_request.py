"""A request that has not ended yet, as its client sees it."""

from __future__ import annotations

import math

import msgspec

from hybridgen.client.event import End
from hybridgen.client.limits import ClientLimits
from hybridgen.client.text_cursor import TextCursor
from hybridgen.errors import HybridGenError, InternalError
from hybridgen.messages import RequestFinished, SubmitRequest, SubscribeText


class OpenRequest:
    """State of one request between ``submit`` and its ``End``.

    Attributes:
        order: what is sent, and sent again, to the coscheduler; carries the server's seed once it
            is known, so that a server that has to start over makes the same text.
        detokenizer: who makes its text; ``None`` before RequestAccepted.
        finished: the final message, kept until all the text it promises is there.
        is_lost: text is known to be missing, an answer to SubscribeText is awaited.
        is_abandoned: nobody listens any more; only the server has to be told.
        ordered_s: when ``order`` was last sent.
        retry_at_s: when to ask again for whatever is awaited.
        deadline_s: when the client itself gives up on the request's own time limit.
    """

    __slots__ = (
        "cursor",
        "deadline_s",
        "detokenizer",
        "finished",
        "heard_s",
        "is_abandoned",
        "is_cancelled",
        "is_lost",
        "is_sent",
        "order",
        "ordered_s",
        "pause_s",
        "retry_at_s",
        "seed",
    )

    def __init__(self, order: SubmitRequest, now_s: float, limits: ClientLimits) -> None:
        self.order = order
        self.cursor = TextCursor()
        self.detokenizer: int | None = None
        self.seed = order.params.seed
        self.finished: RequestFinished | None = None
        self.is_sent = False
        self.is_lost = False
        self.is_cancelled = False
        self.is_abandoned = False
        self.heard_s = now_s
        self.ordered_s = now_s
        self.pause_s = limits.text_retry_s
        self.retry_at_s = now_s + limits.resend_s
        self.deadline_s = (
            math.inf
            if order.timeout_s is None
            else now_s + order.timeout_s + limits.deadline_grace_s
        )

    @property
    def request_id(self) -> bytes:
        """16 bytes chosen by the client."""
        return self.order.request_id

    @property
    def has_all_text(self) -> bool:
        """Whether the final message and all the text that it promises are there."""
        finished, cursor = self.finished, self.cursor
        return (
            finished is not None
            and cursor.num_tokens >= finished.num_tokens
            and cursor.num_chars >= finished.num_chars
        )

    @property
    def lacks_text(self) -> bool:
        """Text is known to be missing, and who is said to have it."""
        is_missing = self.is_lost or self.finished is not None
        return is_missing and self.detokenizer is not None

    def fix_seed(self, seed: int) -> HybridGenError | None:
        """Learn the server's seed; an error when the text was begun with another one."""
        if self.seed is None:
            self.seed = seed
            params = msgspec.structs.replace(self.order.params, seed=seed)
            self.order = msgspec.structs.replace(self.order, params=params)
        if self.seed == seed:
            return None
        return InternalError(
            "the server began the request anew with another seed",
            value=seed,
            limit=self.seed,
            remedy="Submit the request again",
        )

    def subscription(self) -> SubscribeText:
        """Ask for the text from where the shown text ends."""
        return SubscribeText(self.request_id, self.cursor.num_tokens, self.cursor.num_chars)

    def next_pause_s(self, limits: ClientLimits) -> float:
        """The present pause between two attempts; doubles up to the limit."""
        pause_s = self.pause_s
        self.pause_s = min(pause_s * 2, limits.max_text_retry_s)
        return pause_s

    def end(self, finished: RequestFinished) -> End:
        """The last event, when the server ended the request and its text is complete."""
        error = finished.error.exception() if finished.error is not None else None
        if error is not None and self.is_cancelled and error.code == "cancelled":
            error = None  # the caller wished it so
        return End(
            finish_reason=finished.finish_reason,
            num_prompt_tokens=finished.num_prompt_tokens,
            num_cached_tokens=finished.num_cached_tokens,
            num_tokens=finished.num_tokens,
            seed=self.seed or 0,
            error=error or self._excess(finished),
        )

    def given_up(self, error: HybridGenError) -> End:
        """The last event, when the client cannot go on."""
        return End(
            finish_reason="error",
            num_tokens=self.cursor.num_tokens,
            seed=self.seed or 0,
            error=error,
        )

    def _excess(self, finished: RequestFinished) -> HybridGenError | None:
        """More text than the final message counts is a bug that must not pass as an answer."""
        cursor = self.cursor
        if finished.finish_reason not in ("stop", "length"):
            return None
        if (cursor.num_tokens, cursor.num_chars) == (finished.num_tokens, finished.num_chars):
            return None
        return InternalError(
            "a request brought more text than its final message counts",
            value=f"{cursor.num_tokens} tokens, {cursor.num_chars} characters",
            limit=f"{finished.num_tokens} tokens, {finished.num_chars} characters",
            remedy="Please report it",
        )
