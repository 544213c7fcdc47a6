"""What the coscheduler counts; the names are those of its board line."""

from __future__ import annotations

import dataclasses

from hybridgen.errors import PoisonRequest
from hybridgen.request import FinishReason
from hybridgen.scheduler.request_record import Ending


@dataclasses.dataclass(slots=True)
class Counters:
    """Totals since the start of this coscheduler."""

    accepted: int = 0
    finished: int = 0  # = ended_stop + ended_length + cancelled + ended_error
    ended_stop: int = 0
    ended_length: int = 0
    cancelled: int = 0
    ended_error: int = 0
    poisoned: int = 0  # of those with an error
    rejected: int = 0
    prompt_tokens: int = 0
    corrupt_frames: int = 0
    stale: int = 0  # facts about occupants that are gone, and repeats

    def ended(self, ending: Ending) -> None:
        """Count a request that is over."""
        self.finished += 1
        match ending.reason:
            case FinishReason.LENGTH:
                self.ended_length += 1
            case FinishReason.CANCELLED:
                self.cancelled += 1
            case FinishReason.STOP | FinishReason.STOP_STRING:
                self.ended_stop += 1
            case _:
                self.ended_error += 1
        if ending.error is not None and ending.error.code == PoisonRequest.code:
            self.poisoned += 1

    def totals(self) -> dict[str, int]:
        """Those that the board shows, by name."""
        totals = dataclasses.asdict(self)
        del totals["stale"]
        return totals
