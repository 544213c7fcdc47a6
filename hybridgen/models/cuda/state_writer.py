"""Changes of the batch on their way to the device: a few numbers, never waited for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from hybridgen.models.engine import IntArray

#: Batches of changes that may be under way; more than steps in flight.
NUM_STAGES = 4


class _Stage:
    def __init__(self, num_items: int, device: torch.device) -> None:
        is_pinned = device.type == "cuda"
        self.indices = torch.empty(num_items, dtype=torch.int64, pin_memory=is_pinned)
        self.values = torch.empty(num_items, dtype=torch.int32, pin_memory=is_pinned)
        self.device_indices = torch.empty(num_items, dtype=torch.int64, device=device)
        self.device_values = torch.empty(num_items, dtype=torch.int32, device=device)


class StateWriter:
    """Writes items of a vector through pinned memory.

    A stage is used again ``NUM_STAGES`` writes later. There is at most one write a step, and more
    stages than steps in flight, so by then the device has read it, and nothing waits.

    Args:
        items: int32[n] on the device.
    """

    def __init__(self, items: torch.Tensor) -> None:
        self._items = items
        self._stages = [_Stage(len(items), items.device) for _ in range(NUM_STAGES)]
        self._turn = 0

    def write(
        self, indices: npt.NDArray[np.int64], values: IntArray, stream: torch.cuda.Stream
    ) -> None:
        """Enqueue items[indices] = values; indices are distinct."""
        stage = self._stages[self._turn % NUM_STAGES]
        self._turn += 1
        count = len(indices)
        stage.indices.numpy()[:count] = indices
        stage.values.numpy()[:count] = values
        with torch.cuda.stream(stream):
            to = stage.device_indices[:count]
            new = stage.device_values[:count]
            to.copy_(stage.indices[:count], non_blocking=True)
            new.copy_(stage.values[:count], non_blocking=True)
            self._items.index_copy_(0, to, new)


class ParameterWriter:
    """Writes rows of words from the first on, through pinned memory; as ``StateWriter``.

    Args:
        rows: int32[max_rows, num_words] on the device.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows
        is_pinned = rows.device.type == "cuda"
        self._stages = [
            torch.empty(rows.shape, dtype=rows.dtype, pin_memory=is_pinned)
            for _ in range(NUM_STAGES)
        ]
        self._turn = 0

    def write(self, words: IntArray, stream: torch.cuda.Stream) -> None:
        """Enqueue rows[:len(words)] = words."""
        stage = self._stages[self._turn % NUM_STAGES][: len(words)]
        self._turn += 1
        stage.numpy()[:] = words
        with torch.cuda.stream(stream):
            self._rows[: len(words)].copy_(stage, non_blocking=True)
