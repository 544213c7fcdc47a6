"""From mapped files to the device at the speed of the page cache.

Host side: several threads copy bytes from the mapping into one of two pinned buffers, while the
device takes the other. One thread would be bound by its own copying and page faults at a few GB/s.
Device side: everything goes to the current stream, so whatever uses the tensors there comes later
without a wait; a cast is made there, where it costs nothing beside the way over the bus.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from hybridgen.models.cuda.streams import Mark

logger = logging.getLogger(__name__)

#: Of one of two pinned buffers: while one is on its way, the next is filled.
STAGE_BYTES = 64 << 20
#: Threads that fill them; more would be past the host's memory bandwidth.
MAX_THREADS = 8
#: A thread's share of a buffer is not worth splitting below this.
_MIN_SHARE_BYTES = 1 << 20

Bytes = npt.NDArray[np.uint8]


class Uploader:
    """Copies tensors through pinned memory; a context, which ends when all has arrived.

    Args:
        device: where to; "cpu" goes the same way, for tests.
        num_elements: of all tensors together, for ``on_progress``.
        on_progress: called with the share done, 0 … 1.
        cpus: that the filling threads may run on; empty means those of this process. A gpu
            process is pinned to one, which is not enough here.
    """

    def __init__(
        self,
        device: torch.device,
        num_elements: int,
        on_progress: Callable[[float], None],
        cpus: Collection[int] = (),
    ) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._stages = [
            torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=self._is_cuda) for _ in range(2)
        ]
        self._marks = [Mark() for _ in range(2)]
        self._turn = 0
        self._num_done = 0
        self._num_elements = num_elements
        self._on_progress = on_progress
        wanted = set(cpus) or os.sched_getaffinity(0)
        self.num_threads = min(MAX_THREADS, len(wanted))
        self._threads = ThreadPoolExecutor(
            self.num_threads, "upload", initializer=move_thread, initargs=(wanted,)
        )

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the threads; the buffers are free."""
        self._threads.shutdown()
        for mark in self._marks:
            mark.wait()

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """Copy ``source``, on the CPU, to ``out``, contiguous and of the same shape."""
        flat_source, flat_out = source.reshape(-1), out.view(-1)
        num_each = STAGE_BYTES // source.dtype.itemsize
        for start in range(0, len(flat_source), num_each):
            piece = flat_source[start : start + num_each]
            stage, mark = self._stages[self._turn], self._marks[self._turn]
            mark.wait()
            filled = stage[: piece.nbytes]
            self._fill(filled.numpy(), piece.view(torch.uint8).numpy())
            self._send(filled.view(source.dtype), flat_out[start : start + len(piece)])
            if self._is_cuda:
                mark.record(torch.cuda.current_stream(self._device))
            self._turn ^= 1
        self._num_done += len(flat_source)
        self._on_progress(min(1.0, self._num_done / self._num_elements))

    def _fill(self, stage: Bytes, piece: Bytes) -> None:
        share = max(_MIN_SHARE_BYTES, -(-len(piece) // self.num_threads))
        places = [slice(start, start + share) for start in range(0, len(piece), share)]
        # numpy lets go of the interpreter's lock while it copies.
        for _ in self._threads.map(lambda place: np.copyto(stage[place], piece[place]), places):
            pass  # the first error of a thread is raised here

    def _send(self, stage: torch.Tensor, out: torch.Tensor) -> None:
        if out.dtype != stage.dtype:
            # Straight to ``out`` torch would cast on the host, and wait.
            stage = stage.to(self._device, non_blocking=True)
        out.copy_(stage, non_blocking=True)


def move_thread(cpus: Collection[int]) -> None:
    """Let this thread, and no other of the process, run on ``cpus``."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:  # loading is slower then, and nothing else
        logger.warning("a thread that loads weights may not use CPUs %s: %s", sorted(cpus), error)
