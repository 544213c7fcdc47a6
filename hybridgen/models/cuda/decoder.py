"""One decode step of the whole model, and a CUDA graph of it for each batch bucket."""

from __future__ import annotations

import torch

from hybridgen.models.cuda.batch_state import BatchState
from hybridgen.models.cuda.device_model import DeviceModel
from hybridgen.models.cuda.layers import Layers


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
        row_floats: distance of two rows in ``logits``.
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
        self._qkv = rows(config.q_size + 2 * config.kv_size)
        self._attended = rows(config.q_size)
        self._inner = rows(config.intermediate_size)
        self.logits = rows(row_floats, torch.float32)
        self._buckets = batch_buckets(max_rows)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def capture(self, stream: torch.cuda.Stream) -> None:
        """Make the graphs; every row of the state is idle meanwhile."""
        pool = None
        for bucket in reversed(self._buckets):
            with torch.cuda.stream(stream):
                self.step(bucket)  # kernels are compiled, libraries choose
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self.step(bucket)
            pool = pool or graph.pool()
            self._graphs[bucket] = graph
        stream.synchronize()

    def replay(self, num_rows: int) -> None:
        """Enqueue one step of ``num_rows`` rows on the current stream."""
        for bucket in self._buckets:
            if bucket >= num_rows:
                self._graphs[bucket].replay()
                return

    def step(self, num_rows: int) -> None:
        """The step itself, on the first ``num_rows`` rows of the state."""
        state, layers = self._state, self._layers
        config, weights, caches = self._model
        hidden, qkv = self._hidden[:num_rows], self._qkv[:num_rows]
        attended, inner = self._attended[:num_rows], self._inner[:num_rows]
        positions, tables = state.positions[:num_rows], state.tables[:num_rows]
        state.begin(num_rows)
        layers.embed(state.ids[:num_rows], weights.embedding, hidden)
        for layer, cache in zip(weights.layers, caches, strict=True):
            layers.project(hidden, layer.qkv, qkv)
            layers.attend(qkv, cache, attended, positions, tables)
            layers.project(attended, layer.output, hidden, hidden)
            layers.project(hidden, layer.gate_up, inner)
            layers.project(inner, layer.down, hidden, hidden)
        logits = self.logits[:num_rows, : config.vocab_size]
        layers.project(hidden, weights.lm_head, logits)
        state.advance(num_rows)
