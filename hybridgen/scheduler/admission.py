"""Whether a request may come in: its parameters, its lengths, and the room there is."""

from __future__ import annotations

import math

from hybridgen.clock import Clock
from hybridgen.config import SchedulerSection
from hybridgen.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from hybridgen.messages import SubmitRequest
from hybridgen.request import ID_BYTES, MAX_PRIORITY, IdsPrompt, Prompt, check_timeout
from hybridgen.scheduler.finish_rate import FinishRate
from hybridgen.scheduler.tree_shape import TreeShape


class Admission:
    """Pure checks; each raises the typed error that the client gets."""

    def __init__(self, shape: TreeShape, limits: SchedulerSection, clock: Clock) -> None:
        self._shape = shape
        self._limits = limits
        self.finish_rate = FinishRate(clock)

    def check_ids(self, client_id: bytes, request_id: bytes) -> None:
        """Names must fit the slot record.

        Raises:
            InvalidRequest: another length than 16 bytes.
        """
        for param, name in (("client identity", client_id), ("request_id", request_id)):
            if len(name) != ID_BYTES:
                raise InvalidRequest(
                    f"the {param} has another length",
                    param=param,
                    value=len(name),
                    limit=ID_BYTES,
                    remedy="Use 16 random bytes",
                )

    def check(self, order: SubmitRequest, num_live: int) -> None:
        """Everything that can be known before the prompt is encoded.

        Args:
            order: what the client wants.
            num_live: requests that are not over yet.

        Raises:
            InvalidRequest: a parameter, a token id, the priority or the timeout.
            ContextLengthExceeded: ids (or max_tokens alone) that do not fit the context.
            QueueFull: with ``retry_after_s``.
        """
        order.params.validate(self._shape.vocab_size)
        self._check_scheduling(order)
        self.check_prompt(order.prompt)
        if isinstance(order.prompt, IdsPrompt):
            self.max_len(len(order.prompt.ids), order.params.max_tokens)
        elif order.params.max_tokens is not None:
            self.max_len(1, order.params.max_tokens)
        self.check_backlog(num_live)

    def check_prompt(self, prompt: Prompt) -> None:
        """Token ids must be of this vocabulary, and something must be there to go on from.

        Raises:
            InvalidRequest: an empty list, or an id outside.
        """
        if not isinstance(prompt, IdsPrompt):
            return
        ids, vocab_size = prompt.ids, self._shape.vocab_size
        if not ids:
            raise InvalidRequest(
                "the prompt is empty",
                param="prompt",
                value=0,
                limit="≥ 1 token",
                remedy="Give at least one token id",
            )
        low, high = min(ids), max(ids)
        if low < 0 or high >= vocab_size:
            raise InvalidRequest(
                "the prompt names a token id outside the vocabulary",
                param="prompt",
                value=low if low < 0 else high,
                limit=f"[0, {vocab_size})",
                remedy="Use ids of this model's tokenizer",
            )

    def max_len(self, prompt_len: int, max_tokens: int | None, max_kv_tokens: int = -1) -> int:
        """Prompt and generated tokens together, at most.

        Args:
            prompt_len: tokens of the prompt.
            max_tokens: as asked for; None takes what there is.
            max_kv_tokens: tokens that all KV blocks together hold; -1 while unknown. The last
                token of a text is never computed on, so one more fits.

        Raises:
            ContextLengthExceeded: the context, or all KV memory, is too small; naming lengths.
        """
        room = self._shape.max_model_len
        what, remedy = "the context", "Shorten the prompt or lower max_tokens"
        if 0 <= max_kv_tokens < room - 1:
            room = max_kv_tokens + 1
            what, remedy = "the KV memory", f"{remedy}, or start the server with more KV blocks"
        wanted = prompt_len + (1 if max_tokens is None else max_tokens)
        if wanted > room:
            raise ContextLengthExceeded(
                f"prompt and max_tokens together exceed {what}",
                param="prompt" if prompt_len + 1 > room else "max_tokens",
                value=wanted,
                limit=room,
                remedy=remedy,
                num_prompt_tokens=prompt_len,
                max_tokens=max_tokens,
            )
        return room if max_tokens is None else wanted

    def check_backlog(self, num_live: int) -> None:
        """Refuse when as many wait as may wait, besides those that can run at once.

        Raises:
            QueueFull: with ``retry_after_s``.
        """
        num_queued = num_live - self._limits.max_num_seqs
        if num_queued >= self._limits.backlog_limit:
            wait_s = self.finish_rate.retry_after_s(max(num_queued, 0) + 1)
            raise QueueFull(
                "too many requests are waiting",
                value=max(num_queued, 0),
                limit=self._limits.backlog_limit,
                remedy=f"Come back in {math.ceil(wait_s)} s, or raise --backlog-limit",
                retry_after_s=round(wait_s, 3),
            )

    def _check_scheduling(self, order: SubmitRequest) -> None:
        if not -MAX_PRIORITY <= order.priority <= MAX_PRIORITY:
            raise InvalidRequest(
                "priority is out of range",
                param="priority",
                value=order.priority,
                limit=f"[-{MAX_PRIORITY}, {MAX_PRIORITY}]",
                remedy="Give a higher number to what is more urgent; 0 is usual",
            )
        check_timeout(order.timeout_s)
