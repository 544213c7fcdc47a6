"""The numbers of one piece of prefill on their way to the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from hybridgen.errors import InternalError
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.cuda.streams import Mark
from hybridgen.models.device_engine import PromptChunk
from hybridgen.scheduler.device_row import MAX_CONTINUED

#: Pieces get rows that are nobody's until they have a multiple of this many: products are made in
#: tiles of as many, and work is prepared for a few sizes.
TILE_ROWS = 128
#: The smallest size: fewer rows take as long.
LEAST_ROWS = 64


def piece_sizes(max_chunk: int) -> list[int]:
    """The numbers of rows that pieces have."""
    sizes = {min(LEAST_ROWS, max_chunk), *range(TILE_ROWS, max_chunk, TILE_ROWS), max_chunk}
    return sorted(sizes)


class Continued(NamedTuple):
    """A chunk that does not begin its prompt: attention needs what came before, too.

    Attributes:
        number: which of the piece's chunks.
        rows: of the piece.
        start: position of its first token.
        blocks: int32 on the device, of positions 0 … start - 1.
    """

    number: int
    rows: slice
    start: int
    blocks: torch.Tensor


class PieceLayout(NamedTuple):
    """What the host has to know of a piece's rows.

    Rows are tokens, all chunks side by side, and behind them rows that are nobody's.

    Attributes:
        num_rows: one of ``piece_sizes``.
        lengths: rows of each chunk; the rows that are nobody's count with the last.
        offsets: int32[len(lengths) + 1] on the device: where chunks begin, and num_rows.
        continued: chunks that do not begin their prompts.
        num_last: chunks whose last token's logits are wanted.
    """

    num_rows: int
    lengths: list[int]
    offsets: torch.Tensor
    continued: list[Continued]
    num_last: int


class PieceNumbers:
    """The numbers of a piece, in one tensor.

    Attributes:
        whole: int32, all of them.
        logits_slots: int64[num_logits_slots], where logits go to.
        last_rows: int32[num_logits_slots], rows whose logits are wanted.
        ids, positions: int32[max_chunk], of each row; rows that are nobody's are at -1.
        places: int32[max_chunk], of each row: block · block_size + offset of its keys and values.
        offsets: int32[max_chunk + 1], where the chunks begin, and where the last one ends.
        blocks: int32[MAX_CONTINUED · table_width], of what comes before chunks.
    """

    def __init__(self, shape: EngineShape, device: torch.device, *, is_pinned: bool) -> None:
        chunk, last = shape.max_chunk, shape.num_logits_slots
        # Slots are int64, so they stand where any vector is aligned: in front.
        sizes = [2 * last, last, chunk, chunk, chunk, chunk + 1, MAX_CONTINUED * shape.table_width]
        self.whole = torch.zeros(sum(sizes), dtype=torch.int32, device=device, pin_memory=is_pinned)
        slots, *parts = torch.split(self.whole, sizes)
        self.logits_slots = slots.view(torch.int64)
        self.last_rows, self.ids, self.positions, self.places, self.offsets, self.blocks = parts
        self.positions.fill_(-1)


class PieceInputs:
    """The numbers of one piece in pinned memory; reused when the piece is through.

    Args:
        shape: sizes.
        numbers: on the device, of whatever piece is computed.

    Attributes:
        begun, through: places in the stream around the piece.
        is_busy: the device may still read it.
    """

    def __init__(self, shape: EngineShape, numbers: PieceNumbers) -> None:
        self._shape = shape
        self._numbers = numbers
        is_cuda = numbers.whole.is_cuda
        pinned = PieceNumbers(shape, torch.device("cpu"), is_pinned=is_cuda)
        self._pinned = pinned.whole
        self._logits_slots = pinned.logits_slots.numpy()
        self._last_rows = pinned.last_rows.numpy()
        self._rows = tuple(x.numpy() for x in (pinned.ids, pinned.positions, pinned.places))
        self._offsets = pinned.offsets.numpy()
        self._blocks = pinned.blocks.numpy()
        self._sizes = piece_sizes(shape.max_chunk)
        self.begun, self.through = (Mark(is_timed=is_cuda) for _ in range(2))
        self.is_busy = False

    def fill(self, chunks: Sequence[PromptChunk]) -> PieceLayout:
        """Write the numbers of a piece into pinned memory.

        Raises:
            InternalError: the piece does not fit.
        """
        self._check(chunks)
        ids, positions, places = self._rows
        block_size = self._shape.block_size
        lengths: list[int] = []
        continued: list[Continued] = []
        row = num_last = 0
        for chunk in chunks:
            rows = slice(row, row + len(chunk.ids))
            span = np.arange(chunk.start, chunk.stop, dtype=np.int32)
            ids[rows], positions[rows] = chunk.ids, span
            places[rows] = chunk.blocks[span // block_size] * block_size + span % block_size
            if chunk.start > 0:
                blocks = self._take_blocks(chunk, len(continued))
                continued.append(Continued(len(lengths), rows, chunk.start, blocks))
            self._offsets[len(lengths)] = row
            lengths.append(len(chunk.ids))
            row = rows.stop
            if chunk.logits_slot >= 0:
                self._last_rows[num_last] = row - 1
                self._logits_slots[num_last] = chunk.logits_slot
                num_last += 1
        num_rows = next(size for size in self._sizes if size >= row)
        ids[row:num_rows], positions[row:num_rows], places[row:num_rows] = 0, -1, 0
        lengths[-1] += num_rows - row
        self._offsets[len(lengths)] = num_rows
        offsets = self._numbers.offsets[: len(lengths) + 1]
        return PieceLayout(num_rows, lengths, offsets, continued, num_last)

    def send(self) -> None:
        """Enqueue the copy to the device."""
        self._numbers.whole.copy_(self._pinned, non_blocking=True)

    def _take_blocks(self, chunk: PromptChunk, index: int) -> torch.Tensor:
        """The blocks before a chunk, as they will be on the device."""
        first = index * self._shape.table_width
        stop = first + -(-chunk.start // self._shape.block_size)
        self._blocks[first:stop] = chunk.blocks[: stop - first]
        return self._numbers.blocks[first:stop]

    def _check(self, chunks: Sequence[PromptChunk]) -> None:
        shape = self._shape
        have = {
            "tokens": sum(len(chunk.ids) for chunk in chunks),
            "logits": sum(chunk.logits_slot >= 0 for chunk in chunks),
            "continued": sum(chunk.start > 0 for chunk in chunks),
            "context": max((chunk.stop for chunk in chunks), default=0),
        }
        limits = {
            "tokens": shape.max_chunk,
            "logits": shape.num_logits_slots,
            "continued": MAX_CONTINUED,
            "context": shape.max_model_len,
        }
        is_empty = not chunks or min(len(chunk.ids) for chunk in chunks) == 0
        if is_empty or any(have[name] > limit for name, limit in limits.items()):
            raise InternalError(
                "a piece of prefill is empty or does not fit the buffers",
                value=str(have),
                limit=str(limits),
            )
