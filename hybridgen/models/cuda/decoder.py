"""One decode step of the whole model; a CUDA graph of all blocks for each batch bucket.

Ahead of the graph the ids are taken from where they were chosen; behind it come the logits, into
one of two buffers: while the rows of a step are copied to the host, the next step fills the other.
"""

from __future__ import annotations

import torch

from hybridgen.models.cuda.batch_state import BatchState
from hybridgen.models.cuda.device_model import DeviceModel
from hybridgen.models.cuda.layers import Layers, feed_forward

NUM_LOGITS_BUFFERS = 2


def batch_buckets(max_rows: int) -> list[int]:
    """Powers of two below ``max_rows``, and itself."""
    buckets = []
    size = 1
    while size < max_rows:
        buckets.append(size)
        size *= 2
    return [*buckets, max_rows]


class Decoder:
    """Activations of up to ``max_rows`` rows, and the step over them.

    Args:
        model: weights and caches.
        state: the batch.
        layers: operations, with the workspace of the decode stream.
        row_floats: distance of two rows of logits.
    """

    def __init__(
        self,
        model: DeviceModel,
        state: BatchState,
        layers: Layers,
        row_floats: int,
    ) -> None:
        self._model = model
        self._state = state
        self._layers = layers
        max_rows, device = state.layout.max_rows, state.items.device
        config, dtype = model.config, model.weights.embedding.dtype

        def rows(size: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(max_rows, size, dtype=kind, device=device)

        self._hidden = rows(config.hidden_size)
        self._qkv = rows(config.qkv_size)
        self._attended = rows(config.q_size)
        self._inner = rows(config.intermediate_size)
        self._logits = torch.zeros(
            NUM_LOGITS_BUFFERS, max_rows, row_floats, dtype=torch.float32, device=device
        )
        self._buckets = batch_buckets(max_rows)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def logits(self, step: int) -> torch.Tensor:
        """float32[max_rows, row_floats] of a step, valid until the step after the next begins."""
        return self._logits[step % NUM_LOGITS_BUFFERS]

    def capture(self, stream: torch.cuda.Stream) -> None:
        """Make the graphs; every row of the state is idle meanwhile."""
        pool = None
        for bucket in reversed(self._buckets):
            with torch.cuda.stream(stream):
                self.step(bucket, 0)  # kernels are compiled, libraries choose
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self._blocks(bucket)
            pool = pool or graph.pool()
            self._graphs[bucket] = graph
        stream.synchronize()

    def replay(self, num_rows: int, step: int, results_address: int = 0) -> None:
        """Enqueue one step of ``num_rows`` rows on the current stream; see ``step``."""
        bucket = next(bucket for bucket in self._buckets if bucket >= num_rows)
        self._state.begin(bucket, results_address)
        self._graphs[bucket].replay()
        self._head(bucket, step)

    def step(self, num_rows: int, step: int, results_address: int = 0) -> None:
        """The step itself, on the first ``num_rows`` rows of the state.

        Args:
            num_rows: decoded rows.
            step: its number.
            results_address: see ``BatchState.begin``.
        """
        self._state.begin(num_rows, results_address)
        self._blocks(num_rows)
        self._head(num_rows, step)

    def _blocks(self, num_rows: int) -> None:
        state, layers = self._state, self._layers
        _, weights, caches = self._model
        hidden, qkv = self._hidden[:num_rows], self._qkv[:num_rows]
        attended, inner = self._attended[:num_rows], self._inner[:num_rows]
        positions, tables = state.positions[:num_rows], state.tables[:num_rows]
        layers.embed(state.ids[:num_rows], weights.embedding, hidden)
        for layer, cache in zip(weights.layers, caches, strict=True):
            layers.project(hidden, layer.qkv, qkv)
            layers.attend(qkv, cache, attended, positions, tables, heads=layer.heads)
            layers.project(attended, layer.output, hidden, hidden)
            feed_forward(layers, layer.feed_forward, hidden, inner, positions)
        state.advance(num_rows)

    def _head(self, num_rows: int, step: int) -> None:
        vocab_size = self._model.config.vocab_size
        logits = self.logits(step)[:num_rows, :vocab_size]
        self._layers.project(self._hidden[:num_rows], self._model.weights.lm_head, logits)
