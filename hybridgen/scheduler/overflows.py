"""What becomes of rows that a device had no memory to compute.

Weights, KV blocks and buffers are planned and taken at the start. What is taken later is little:
results of attention over prompts, kernels that are loaded at their first use, workspaces of
libraries. If that does not fit, the gpu process takes back the piece or the step, and its rows are
off. They wait again, as preempted ones do, and are computed anew from their token ids. So that it
fits the next time,

- the gpu process makes smaller pieces (``PrefillBudget``);
- a prompt that overflowed joins only while no other is being computed, so that it has a piece to
  itself and shows whether the fault is its own;
- after a step that overflowed only half as many rows join, for ``LIMIT_S`` seconds.

A request that overflows ``MAX_OVERFLOWS`` times without a token in between is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridgen.clock import Clock
from hybridgen.errors import OutOfDeviceMemory
from hybridgen.ipc.slot_table import SlotState
from hybridgen.messages import ErrorInfo
from hybridgen.scheduler.request_record import RequestRecord

#: Among others first, then twice alone, each time in smaller pieces.
MAX_OVERFLOWS = 3
LIMIT_S = 60.0


class Overflows:
    """Pure: counts them, and says who may join.

    Args:
        max_rows: rows at most, as configured.
        clock: seconds that never jump.
    """

    def __init__(self, max_rows: int, clock: Clock) -> None:
        self.count = 0  # of rows
        self._max_rows = max_rows
        self._clock = clock
        self._limit = max_rows
        self._limit_until_s = 0.0

    def note(self, records: Sequence[RequestRecord], num_rows: int) -> None:
        """These of ``num_rows`` rows have overflowed, in one step or in one piece."""
        self.count += len(records)
        if any(record.state is SlotState.RUNNING for record in records):
            self._limit = max(1, num_rows // 2)
            self._limit_until_s = self._clock() + LIMIT_S

    @property
    def max_rows(self) -> int:
        """Rows at most, now."""
        return self._limit if self._clock() < self._limit_until_s else self._max_rows

    def keeps_out(self, record: RequestRecord, rows: Iterable[RequestRecord]) -> bool:
        """Whether ``record`` may not join these rows yet: one of two prompts has overflowed."""
        if self.count == 0:
            return False
        prompts = [row for row in rows if row.state is SlotState.PREFILL]
        return any(other.num_overflows > 0 for other in (record, *prompts)) and bool(prompts)

    def charge(
        self, record: RequestRecord, num_tokens: int, said: ErrorInfo | None
    ) -> OutOfDeviceMemory | None:
        """Count against one request; the error that ends it, once it is enough.

        Args:
            record: has overflowed.
            num_tokens: generated so far.
            said: by the device.
        """
        is_stuck = record.tokens_at_overflow == num_tokens
        record.num_overflows = record.num_overflows + 1 if is_stuck else 1
        record.tokens_at_overflow = num_tokens
        if record.num_overflows < MAX_OVERFLOWS:
            return None
        facts = {} if said is None else said.fields
        return OutOfDeviceMemory(
            "the device has no memory to compute this request",
            value=f"request {record.request_id.hex()}: {record.prompt_len + num_tokens} tokens, "
            f"needing {facts.get('value', 'an unknown amount')}",
            limit=f"{facts.get('limit', 'unknown')}, after {MAX_OVERFLOWS} tries",
            remedy="Shorten the prompt, or have the server started with a lower --gpu-memory or "
            "--kv-cache-memory: more is left for prompts then",
            num_tokens=record.prompt_len + num_tokens,
        )
