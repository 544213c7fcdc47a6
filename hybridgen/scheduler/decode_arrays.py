"""The running rows of the gpu process as arrays, one entry of each per sequence.

::

    ids        int32[n]      last known token
    positions  int32[n]      its absolute position = known tokens - 1
    tables     int32[n, w]   KV blocks, from position 0
    room       int32[n]      tokens that these blocks hold
    headers    hg_row[n]     slot, epoch, detokenizer

A step only adds one to each position; a row that joins is appended, and the last row fills the
place of one that leaves.
"""

from __future__ import annotations

import numpy as np

from hybridgen.errors import InternalError
from hybridgen.scheduler.batch_row import HEADER_DTYPE, GpuRow, Phase


class DecodeArrays:
    """Dense: the first ``len(rows)`` entries are in use."""

    def __init__(self, max_rows: int, width: int, block_size: int) -> None:
        self._block_size = block_size
        self.rows: list[GpuRow] = []
        self.ids = np.zeros(max_rows, np.int32)
        self.positions = np.zeros(max_rows, np.int32)
        self.tables = np.zeros((max_rows, width), np.int32)
        self.room = np.zeros(max_rows, np.int32)
        self.is_told = np.zeros(max_rows, np.bool_)  # StepReport.starving has named the row
        self.headers = np.zeros(max_rows, HEADER_DTYPE)

    def append(self, row: GpuRow, token_id: int, num_tokens: int) -> None:
        """Let ``row`` run: ``token_id`` is the last of its ``num_tokens`` known tokens.

        Raises:
            InternalError: more rows than there is space for.
        """
        index = len(self.rows)
        if index >= len(self.ids):
            raise InternalError("too many running rows", value=index + 1, limit=len(self.ids))
        self.rows.append(row)
        row.phase = Phase.RUNNING
        row.index = index
        self.ids[index] = token_id
        self.positions[index] = num_tokens - 1
        self.tables[index, : len(row.blocks)] = row.blocks
        self.tables[index, len(row.blocks) :] = 0
        self.room[index] = len(row.blocks) * self._block_size
        self.is_told[index] = False
        self.headers[index] = (row.slot, 0, row.epoch, 0, row.detokenizer, 0)

    def extend(self, row: GpuRow, first: int) -> None:
        """``row.blocks`` grew, from index ``first`` on."""
        self.tables[row.index, first : len(row.blocks)] = row.blocks[first:]
        self.room[row.index] = len(row.blocks) * self._block_size
        self.is_told[row.index] = False

    def remove(self, row: GpuRow) -> None:
        """Take ``row`` out; the last row gets its place."""
        index, last = row.index, len(self.rows) - 1
        moved = self.rows.pop()
        if index != last:
            self.rows[index] = moved
            moved.index = index
            for array in (
                self.ids,
                self.positions,
                self.tables,
                self.room,
                self.is_told,
                self.headers,
            ):
                array[index] = array[last]
        row.index = -1
