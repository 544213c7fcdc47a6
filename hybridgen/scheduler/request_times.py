"""When a request passed from one stage to the next."""

from __future__ import annotations

import math
from typing import NamedTuple


class RequestTimes(NamedTuple):
    """Seconds on CLOCK_MONOTONIC; NaN for what never came, or came under another coscheduler.

    ::

        arrival ─ queue ─ seated ─ tokenize ─ encoded ─ queue ─ joined ─ prefill ─ prefilled
                                                                  ─ decode ─ final
    """

    arrival_s: float = math.nan
    seated_s: float = math.nan
    """It got a slot, and its prompt went to a tokenizer."""
    encoded_s: float = math.nan
    joined_s: float = math.nan
    """Its first place in the batch; a later one, after a preemption, counts as decoding."""
    prefilled_s: float = math.nan
    final_s: float = math.nan
    """Its end was told to the client."""

    def stages(self) -> dict[str, list[tuple[float, float]]]:
        """Stage → its (begin, end) pairs, only of stages that were gone through."""
        spans = {
            "queue": [(self.arrival_s, self.seated_s), (self.encoded_s, self.joined_s)],
            "tokenize": [(self.seated_s, self.encoded_s)],
            "prefill": [(self.joined_s, self.prefilled_s)],
            "decode": [(self.prefilled_s, self.final_s)],
        }
        whole = {
            stage: [pair for pair in pairs if not math.isnan(pair[1] - pair[0])]
            for stage, pairs in spans.items()
        }
        return {stage: pairs for stage, pairs in whole.items() if pairs}

    def stage_seconds(self) -> dict[str, float]:
        """Stage → seconds spent in it, only of stages that were gone through."""
        return {
            stage: sum(end_s - begin_s for begin_s, end_s in pairs)
            for stage, pairs in self.stages().items()
        }

    @property
    def total_s(self) -> float:
        """Arrival to end."""
        return self.final_s - self.arrival_s
