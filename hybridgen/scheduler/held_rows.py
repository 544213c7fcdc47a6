"""Rows that would run, but have no block for their next position: held out until they get one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from hybridgen.scheduler.batch_row import Phase
from hybridgen.scheduler.device_arrays import DeviceArrays
from hybridgen.scheduler.device_row import DeviceRow


class HeldRows:
    """Those of one batch.

    A device that runs ahead has the newest token of a row, while its host may not know it yet: a
    held row resumes once both its block and that token are there.
    """

    def __init__(self, arrays: DeviceArrays) -> None:
        self._arrays = arrays
        self._rows: list[DeviceRow] = []

    def hold(self, row: DeviceRow, last_ids: NDArray[np.int32] | None) -> None:
        """Take ``row`` out of the running ones.

        Args:
            row: runs.
            last_ids: tokens of the newest step, by row; None while it is in flight.
        """
        arrays = self._arrays
        row.position = int(arrays.positions[row.index])
        row.origin, row.last_id = int(arrays.origins[row.index]), -1
        if row.origin < 0:
            row.last_id = -1 - row.origin
        elif last_ids is not None:
            row.last_id = int(last_ids[row.origin])
        arrays.remove(row)
        row.phase = Phase.HELD
        self._rows.append(row)

    def tell(
        self,
        rows: Collection[DeviceRow],
        token_ids: NDArray[np.integer],
        in_flight: Sequence[Collection[DeviceRow]],
    ) -> None:
        """A step is over.

        Args:
            rows: of the step.
            token_ids: their tokens.
            in_flight: the rows of each step that is still in flight.
        """
        for row in self._rows:
            if row.last_id < 0 and row in rows and not any(row in later for later in in_flight):
                row.last_id = int(token_ids[row.origin])

    def resume(self) -> None:
        """Let all run that can."""
        for row in [row for row in self._rows if self._can_resume(row)]:
            self._rows.remove(row)
            self._arrays.append(row, row.position, -1 - row.last_id)

    def discard(self, row: DeviceRow) -> None:
        """``row`` leaves the batch."""
        self._rows.remove(row)

    @property
    def can_any_resume(self) -> bool:
        """Whether ``resume`` would do something."""
        return any(self._can_resume(row) for row in self._rows)

    def _can_resume(self, row: DeviceRow) -> bool:
        return row.last_id >= 0 and row.position < self._arrays.room_of(row)
