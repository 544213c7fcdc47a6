"""The rows that a device decodes, as its host sees them, and how the two are kept the same.

``positions[i]`` is what the device must find there before the *next* step. A step changes nothing
that the host could not work out, so the host never reads device memory: it writes only rows that
joined, moved or got blocks since the step before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridgen.errors import InternalError
from hybridgen.scheduler.batch_row import HEADER_DTYPE, Phase
from hybridgen.scheduler.device_row import DeviceRow, StateLayout
from hybridgen.scheduler.row_parameters import PARAMETER_WORDS

IDLE = -1


class DeviceArrays:
    """Dense: the first ``len(rows)`` entries are in use.

    Attributes:
        rows: by index.
        positions: int32, of each row's newest token.
        origins: int32, see ``StateLayout``.
        room: int32, positions that the row may decode.
        is_told: the row was reported to run short of blocks.
        headers: hg_row records without lane, position and flags.
        parameters: int32 words of each row (``row_parameters``), without the position.
        plain_from: int64, positions from which on the device may look at the row's logits itself.
        is_changed: a row came, went or moved since this was set to False.
    """

    def __init__(self, layout: StateLayout, block_size: int, max_model_len: int) -> None:
        max_rows = layout.max_rows
        self._layout = layout
        self._block_size = block_size
        # The token after the last position of the context has no place.
        self._most_room = max_model_len - 1
        self._identity = np.arange(max_rows, dtype=np.int32)
        self._stale: set[int] = set()  # indices whose row the device does not know there
        self._grown: list[tuple[DeviceRow, int]] = []
        self._num_written = 0  # rows that are not idle on the device
        self.rows: list[DeviceRow] = []
        self.positions = np.zeros(max_rows, np.int32)
        self.origins = np.zeros(max_rows, np.int32)
        self.room = np.zeros(max_rows, np.int32)
        self.is_told = np.zeros(max_rows, np.bool_)
        self.headers = np.zeros(max_rows, HEADER_DTYPE)
        self.parameters = np.zeros((max_rows, PARAMETER_WORDS), np.int32)
        self.plain_from = np.zeros(max_rows, np.int64)
        self.is_changed = False

    def append(self, row: DeviceRow, position: int, origin: int) -> None:
        """Let ``row`` run; its newest token stands at ``position``.

        Raises:
            InternalError: more rows than there is space for.
        """
        index = len(self.rows)
        if index >= self._layout.max_rows:
            raise InternalError("too many running rows", value=index + 1, limit=index)
        self.rows.append(row)
        row.phase = Phase.RUNNING
        row.index = index
        self.positions[index] = position
        self.origins[index] = origin
        self.room[index] = self.room_of(row)
        self.is_told[index] = False
        self.headers[index] = (row.slot, 0, row.epoch, 0, row.detokenizer, 0)
        self.parameters[index], self.plain_from[index] = row.parameters
        self.is_changed = True
        self._stale.add(index)

    def extend(self, row: DeviceRow, first: int) -> None:
        """``row.blocks`` grew, from index ``first`` on."""
        self.room[row.index] = self.room_of(row)
        self.is_told[row.index] = False
        self._grown.append((row, first))

    def remove(self, row: DeviceRow) -> None:
        """Take ``row`` out; the last row gets its place."""
        index, last = row.index, len(self.rows) - 1
        moved = self.rows.pop()
        if index != last:
            self.rows[index] = moved
            moved.index = index
            for array in self._by_row:
                array[index] = array[last]
            self._stale.add(index)
        row.index = -1
        self.is_changed = True

    def room_of(self, row: DeviceRow) -> int:
        """Positions that the row's blocks hold, as far as the context goes."""
        return min(len(row.blocks) * self._block_size, self._most_room)

    @property
    def _by_row(self) -> tuple[NDArray[Any], ...]:
        """What moves with a row."""
        return (
            *(self.positions, self.origins, self.room, self.is_told, self.headers),
            *(self.parameters, self.plain_from),
        )

    def take_writes(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(items, values) that bring the device's state up to date; call once before each step."""
        pieces: list[tuple[int, NDArray[np.int32]]] = []
        num_rows = len(self.rows)
        for index in self._stale:
            if index < num_rows:
                self._write_row(index, pieces)
        for row, first in self._grown:
            if row.phase is Phase.RUNNING and row.index not in self._stale:
                self._write_blocks(row, first, pieces)
        num_idle = self._num_written - num_rows
        if num_idle > 0:
            pieces.append((num_rows, np.full(num_idle, IDLE, np.int32)))
        self._stale.clear()
        self._grown.clear()
        self._num_written = num_rows
        if not pieces:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        items = [np.arange(start, start + len(values)) for start, values in pieces]
        return np.concatenate(items), np.concatenate([values for _, values in pieces])

    def distrust(self) -> None:
        """Nobody knows which rows the device has, now that none is left: all are to be idle."""
        self._num_written = self._layout.max_rows

    def advance(self) -> None:
        """The step was planned: afterwards each newest token is the one that it chooses."""
        num_rows = len(self.rows)
        self.positions[:num_rows] += 1
        self.origins[:num_rows] = self._identity[:num_rows]

    def _write_row(self, index: int, pieces: list[tuple[int, NDArray[np.int32]]]) -> None:
        layout = self._layout
        pieces.append((index, self.positions[index : index + 1].copy()))
        pieces.append((layout.origins + index, self.origins[index : index + 1].copy()))
        self._write_blocks(self.rows[index], 0, pieces)

    def _write_blocks(
        self, row: DeviceRow, first: int, pieces: list[tuple[int, NDArray[np.int32]]]
    ) -> None:
        start = self._layout.tables + row.index * self._layout.width + first
        pieces.append((start, np.asarray(row.blocks[first:], np.int32)))
