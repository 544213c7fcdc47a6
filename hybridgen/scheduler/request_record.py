"""One live request, as the coscheduler sees it.

What must outlive the coscheduler is in the slot record (ipc/layout.h); this is its private copy
plus what can be found out again: who was told what, and what is still expected from whom.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

from hybridgen.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    GrammarSpent,
    HybridGenError,
    InternalError,
    InvalidLogits,
    PoisonRequest,
    RestartBudgetSpent,
    SlowReader,
)
from hybridgen.ipc.slot_table import SlotState
from hybridgen.messages import ErrorInfo, TextFinished
from hybridgen.request import FinishReason, Prompt, SamplingParams
from hybridgen.scheduler.request_times import RequestTimes
from hybridgen.trace_context import TraceContext

if TYPE_CHECKING:
    from hybridgen.messages import RequestFinished

#: hg_slot.end_error is an index into this table: enough to name the error after a restart.
END_ERRORS: tuple[type[HybridGenError] | None, ...] = (
    None,
    InternalError,
    Cancelled,
    DeadlineExceeded,
    Draining,
    PoisonRequest,
    SlowReader,
    InvalidLogits,
    RestartBudgetSpent,
    GrammarSpent,
)
_END_CODES = {cls.code: index for index, cls in enumerate(END_ERRORS) if cls is not None}
_OTHER_ERROR = 1

#: The tree's own client (canary.py); what it asks for is counted and logged nowhere.
CANARY_CLIENT = b"hybridgen/canary"

NATURAL_ENDS = frozenset({FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP_STRING})


class Ending(NamedTuple):
    """Why a request is over."""

    reason: FinishReason
    error: ErrorInfo | None = None

    @classmethod
    def of(cls, error: HybridGenError) -> Ending:
        """The ending that ``error`` means for one request."""
        is_cancel = isinstance(error, Cancelled | SlowReader)
        reason = FinishReason.CANCELLED if is_cancel else FinishReason.ERROR
        return cls(reason, ErrorInfo.of(error))

    @classmethod
    def restored(cls, reason: FinishReason, end_error: int) -> Ending:
        """The ending that was written into a slot before the coscheduler died."""
        error_class = END_ERRORS[end_error] if end_error < len(END_ERRORS) else InternalError
        if error_class is None:
            return cls(reason)
        return cls(reason, ErrorInfo.of(error_class("the request was ended before a restart")))

    @property
    def end_error(self) -> int:
        """Index into END_ERRORS."""
        return 0 if self.error is None else _END_CODES.get(self.error.code, _OTHER_ERROR)


@dataclasses.dataclass(eq=False, slots=True)
class RequestRecord:
    """Mutable; changed only by the parts of the coscheduler.

    A slot is free again once nobody can touch it any more: its row is off the gpu process, no
    encode is under way, its text is closed, and the client has confirmed (or did not in time).
    """

    client_id: bytes
    request_id: bytes
    params: SamplingParams
    seed: int
    priority: int
    arrival: int  # counts requests; the order within a priority
    arrival_s: float
    deadline_s: float
    prompt: Prompt | None = None  # None: encoded, or lost with the previous coscheduler
    trace: TraceContext | None = None  # None: the client gave none, or it was lost in a restart

    slot: int = -1
    epoch: int = 0
    state: SlotState = SlotState.FREE
    tokenizer: int = 0
    detokenizer: int = 0
    prompt_len: int = 0
    max_len: int = 0
    deaths: int = 0  # of workers that served it, by kind (quarantine.py), as in its slot
    tokens_at_death: int = 0  # generated when the gpu process died under it
    text_death_s: float = -math.inf  # when a detokenizer died of it last, as far as is known
    is_suspect: bool = False  # it may be what kills the gpu process

    # Encoding
    num_encodes: int = 0  # EncodePrompt orders without an answer
    prompt_wait_s: float = math.inf  # until when the client may repeat a lost prompt

    # The gpu process
    is_row: bool = False  # the gpu process may touch its blocks
    is_retiring: bool = False  # RetireSlot sent, not confirmed
    is_starving: bool = False  # asked for blocks that were not there
    num_returning: int = 0  # while is_retiring: blocks that come back with it
    blocks: list[int] = dataclasses.field(default_factory=list)  # its table, from position 0
    num_freed: int = 0  # leading blocks of the table that are out of its window, and not its own
    num_wanted: int = 0  # while is_starving: blocks to add at once
    num_to_prefill: int = 0  # tokens that its row joined with
    num_written: int = 0  # leading tokens whose KV is in its blocks, as far as reported
    num_cached: int = 0  # tokens of its prompt that were there when it first joined
    num_preemptions: int = 0
    num_overflows: int = 0  # the device had no memory for it; without a token in between
    tokens_at_overflow: int = -1  # generated then; -1: never

    # The end
    ending: Ending | None = None  # decided; None while it runs
    is_cut: bool = False  # ended from outside rather than by its own tokens
    text: TextFinished | None = None
    is_text_open: bool = False  # the present detokenizer process was told of it
    final: RequestFinished | None = None  # sent
    is_acked: bool = False
    is_released: bool = False  # gone from the book, slot free

    seated_s: float = math.nan
    encoded_s: float = math.nan
    joined_s: float = math.nan
    prefilled_s: float = math.nan
    ended_s: float = math.nan
    final_s: float = math.nan
    alarm_s: float = math.inf

    @property
    def key(self) -> tuple[bytes, bytes]:
        """What makes a repeated SubmitRequest the same request."""
        return self.client_id, self.request_id

    @property
    def rank(self) -> tuple[int, int]:
        """Place in every queue; the row with the greatest rank is preempted first."""
        return -self.priority, self.arrival

    @property
    def held_blocks(self) -> list[int]:
        """Blocks of its table that it has not given back."""
        return self.blocks[self.num_freed :]

    @property
    def is_canary(self) -> bool:
        """Whether nobody but the tree itself asked for it."""
        return self.client_id == CANARY_CLIENT

    @property
    def num_deaths(self) -> int:
        """Deaths of all kinds."""
        return sum(self.deaths.to_bytes(8, "little"))

    @property
    def has_slot(self) -> bool:
        """Whether it holds a slot."""
        return self.slot >= 0

    @property
    def is_over(self) -> bool:
        """Whether its end is decided."""
        return self.ending is not None


class FinishedRequest(NamedTuple):
    """What one log line says about a finished request."""

    request_id: bytes
    slot: int
    finish_reason: str
    error_code: str
    num_prompt_tokens: int
    num_tokens: int
    queue_s: float  # arrival to first JoinBatch; NaN if it never ran
    total_s: float
    num_preemptions: int
    deaths: int
    times: RequestTimes = RequestTimes()
    trace: TraceContext | None = None

    def __str__(self) -> str:
        """``request <id>: stop, 3 + 50 tokens, 0.091 s (0.003 queued), slot 0``, rare things."""
        ending = self.finish_reason if not self.error_code else f"error {self.error_code}"
        queued = "never ran" if math.isnan(self.queue_s) else f"{self.queue_s:.3f} queued"
        line = (
            f"request {self.request_id.hex()}: {ending}, "
            f"{self.num_prompt_tokens} + {self.num_tokens} tokens, "
            f"{self.total_s:.3f} s ({queued}), slot {self.slot}"
        )
        rare = {"preemptions": self.num_preemptions, "deaths": self.deaths}
        return line + "".join(f", {count} {name}" for name, count in rare.items() if count)
