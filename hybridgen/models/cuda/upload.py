"""From mapped files to the device at the speed of the page cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridgen.models.cuda.streams import Mark, make_stream

#: Of one of two pinned buffers: while one is on its way, the next is filled.
STAGE_BYTES = 64 << 20


class Uploader:
    """Copies tensors through pinned memory, cast on the way where needed.

    Args:
        dtype: on the device.
        device: where to.
        num_elements: of all tensors together, for ``on_progress``.
        on_progress: called with the share done, 0 … 1.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        num_elements: int,
        on_progress: Callable[[float], None],
    ) -> None:
        size = STAGE_BYTES // dtype.itemsize
        self._stages = [torch.empty(size, dtype=dtype, pin_memory=True) for _ in range(2)]
        self._events = [Mark() for _ in range(2)]
        self._stream = make_stream(device)
        self._turn = 0
        self._num_done = 0
        self._num_elements = num_elements
        self._on_progress = on_progress

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """Copy ``source`` to ``out``, contiguous and of the same shape, on the device."""
        flat_source, flat_out = source.reshape(-1), out.view(-1)
        for start in range(0, len(flat_source), len(self._stages[0])):
            piece = flat_source[start : start + len(self._stages[0])]
            stage, event = self._stages[self._turn], self._events[self._turn]
            event.wait()
            stage[: len(piece)].copy_(piece)
            with torch.cuda.stream(self._stream):
                flat_out[start : start + len(piece)].copy_(stage[: len(piece)], non_blocking=True)
                event.record(self._stream)
            self._turn ^= 1
        self._num_done += len(flat_source)
        self._on_progress(min(1.0, self._num_done / self._num_elements))
