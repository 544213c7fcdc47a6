"""What the coscheduler counts; the names are those of its board line."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Counters:
    """Totals since the start of this coscheduler."""

    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    rejected: int = 0
    corrupt_frames: int = 0
    stale: int = 0  # facts about occupants that are gone, and repeats
