"""What lies between the attentions of a piece, as CUDA graphs: one for each layer and piece size.

Attention depends on the chunks of a piece, and stays outside; the rest only on the number of rows.
A graph is enqueued in about the time of one kernel, and replaces about seven.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch


class PieceGraphs:
    """Graphs by number of rows and part.

    Args:
        sizes: numbers of rows.
        num_parts: parts of a piece.
        enqueue: enqueues a part for so many rows, on the current stream.
        stream: where they are captured, the current one.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        num_parts: int,
        enqueue: Callable[[int, int], None],
        stream: torch.cuda.Stream,
    ) -> None:
        self._graphs: dict[int, list[Any]] = {}
        self._pool: Any = torch.cuda.graph_pool_handle()
        # A graph that is collected while another one is captured would spoil it, and torch's own
        # way, a collection before each, takes longer than all captures.
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            for num_rows in sorted(sizes, reverse=True):
                for part in range(num_parts):
                    enqueue(part, num_rows)  # kernels are compiled, libraries choose
                stream.synchronize()
                self._graphs[num_rows] = [
                    self._capture(enqueue, part, num_rows) for part in range(num_parts)
                ]
        finally:
            if was_enabled:
                gc.enable()

    def replay(self, part: int, num_rows: int) -> None:
        """Enqueue a part on the current stream."""
        self._graphs[num_rows][part].replay()

    def _capture(self, enqueue: Callable[[int, int], None], part: int, num_rows: int) -> Any:
        graph: Any = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool)
        try:
            enqueue(part, num_rows)
        finally:
            graph.capture_end()
        return graph
