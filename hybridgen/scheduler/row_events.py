"""What a batch has to tell the coscheduler, held back until it is true."""

from __future__ import annotations

import enum
from typing import NamedTuple

from hybridgen.messages import ErrorInfo, RowProgress, SlotEvent, StepReport
from hybridgen.scheduler.device_row import DeviceRow


class Departure(enum.Enum):
    """Why a row left."""

    FINISHED = enum.auto()
    RETIRED = enum.auto()
    OVERFLOWED = enum.auto()  # the device had no memory to compute it


class _Leaver(NamedTuple):
    row: DeviceRow
    why: Departure
    last_step: int  # newest step in flight when it left; 0: none


class RowEvents:
    """Events since the last report, and rows that have left but are still touched."""

    def __init__(self) -> None:
        self.advanced: list[RowProgress] = []
        self.prefilled: list[SlotEvent] = []
        self.starving: list[RowProgress] = []
        self._left: dict[Departure, list[SlotEvent]] = {why: [] for why in Departure}
        self._leavers: list[_Leaver] = []
        self.memory_error: ErrorInfo | None = None  # of the last rows that overflowed

    def leave(self, row: DeviceRow, why: Departure, last_step: int) -> None:
        """``row`` is in no step after ``last_step``; told once that one is over."""
        self._leavers.append(_Leaver(row, why, last_step))

    def deny(self, event: SlotEvent) -> None:
        """A row that is to be retired is not here: confirm that, now or with its departure."""
        for index, leaver in enumerate(self._leavers):
            if leaver.row.key == (event.slot, event.epoch):
                if leaver.why is Departure.OVERFLOWED:
                    self._leavers[index] = leaver._replace(why=Departure.RETIRED)
                return
        self._left[Departure.RETIRED].append(event)

    def release(self, oldest: int | None) -> None:
        """Tell of rows that no step (from ``oldest`` on) and no piece of prefill touches."""
        staying = []
        for leaver in self._leavers:
            row = leaver.row
            is_off = oldest is None or leaver.last_step < oldest
            if is_off and row.num_chunks_out == 0:
                self._left[leaver.why].append(SlotEvent(row.slot, row.epoch))
            else:
                staying.append(leaver)
        self._leavers = staying

    def take_report(self, step: int) -> StepReport | None:
        """What happened since the last report, if anything."""
        finished, retired = self._left[Departure.FINISHED], self._left[Departure.RETIRED]
        overflowed, error = self._left[Departure.OVERFLOWED], self.memory_error
        events = (self.advanced, self.prefilled, finished, retired, overflowed, self.starving)
        if not any(events):
            return None
        report = StepReport(
            step=step,
            advanced=self.advanced,
            prefilled=self.prefilled,
            finished=finished,
            retired=retired,
            starving=self.starving,
            overflowed=overflowed,
            memory_error=error if overflowed else None,
        )
        self.advanced, self.prefilled, self.starving = [], [], []
        self._left = {why: [] for why in Departure}
        return report
