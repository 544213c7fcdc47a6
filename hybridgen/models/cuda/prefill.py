"""Pieces of prompts, enqueued some layers at a time on a stream of their own.

A piece holds chunks of several prompts side by side, so that products are large even where prompts
are short. What lies between two attentions depends only on the number of rows, and is one graph on
the device; attention depends on the chunks (see ``prompt_attention``). Of the last layer only the
rows are computed whose logits are wanted, behind its keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hybridgen.errors import InternalError, OutOfDeviceMemory
from hybridgen.models.cuda.device_memory import device_memory
from hybridgen.models.cuda.device_model import DeviceModel
from hybridgen.models.cuda.layers import Layers, feed_forward
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.cuda.piece_graphs import PieceGraphs
from hybridgen.models.cuda.piece_inputs import (
    PieceInputs,
    PieceLayout,
    PieceNumbers,
    piece_sizes,
)
from hybridgen.models.cuda.prompt_attention import PromptAttention
from hybridgen.models.device_engine import PromptChunk

#: Pieces that may be enqueued: the device goes on with the next while the host looks at the last.
MAX_PIECES = 2


class _Views(NamedTuple):
    """The buffers cut to a number of rows, once for all pieces of that size."""

    hidden: torch.Tensor  # [n, hidden_size]
    qkv: torch.Tensor  # [n, q_size + 2 kv_size]
    inner: torch.Tensor  # [n, intermediate_size]
    ids: torch.Tensor  # int32[n]
    positions: torch.Tensor  # int32[n]
    places: torch.Tensor  # int32[n]


class PrefillPiece:
    """Implements ``PrefillRun``."""

    def __init__(self, prefiller: Prefiller, inputs: PieceInputs, layout: PieceLayout) -> None:
        self._prefiller = prefiller
        self._inputs = inputs
        self._layout = layout
        self._num_layers_out = 0
        self._is_sent = False

    def advance(self, num_layers: int = 1) -> bool:
        """See ``PrefillRun``."""
        if self._is_sent:
            return False
        stream, inputs = self._prefiller.stream, self._inputs
        with torch.cuda.stream(stream):
            if self._num_layers_out == 0:
                inputs.begun.record(stream)
            try:
                with device_memory("a piece of prefill"):
                    self.enqueue(num_layers)
            except OutOfDeviceMemory:
                self._is_sent = True  # as far as it goes
                raise
            finally:
                if self._is_sent:
                    inputs.through.record(stream)
        return not self._is_sent

    def enqueue(self, num_layers: int) -> None:
        """The next layers on the current stream; inputs before the first, logits after the last."""
        prefiller, layout = self._prefiller, self._layout
        if self._num_layers_out == 0:
            self._inputs.send()
        last = min(self._num_layers_out + num_layers, prefiller.num_layers)
        for index in range(self._num_layers_out, last):
            prefiller.layer(index, layout)
        self._num_layers_out = last
        if last == prefiller.num_layers:
            prefiller.finish(layout)
            self._is_sent = True

    def is_done(self) -> bool:
        """See ``PrefillRun``."""
        if not self._is_sent or not self._inputs.through.is_reached():
            return False
        self._inputs.is_busy = False
        return True

    def device_ms(self) -> float:
        """See ``PrefillRun``."""
        return self._inputs.through.ms_since(self._inputs.begun)


class Prefiller:
    """Activations of one piece, and the model over them.

    Args:
        model: weights and caches.
        shape: sizes.
        layers: operations, with the workspace of the prefill stream.
        row_floats: length of a row of ``logits``.
        stream: pieces are computed on it, one after the other.
    """

    def __init__(
        self,
        model: DeviceModel,
        shape: EngineShape,
        layers: Layers,
        row_floats: int,
        stream: torch.cuda.Stream,
    ) -> None:
        config, weights, _ = model
        self._model = model
        self._layers = layers
        self.stream = stream
        self.num_layers = config.num_layers
        device, dtype = weights.embedding.device, weights.embedding.dtype

        def rows(num_rows: int, size: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(num_rows, size, dtype=kind, device=device)

        chunk, last = shape.max_chunk, shape.num_logits_slots
        self._hidden = rows(chunk, config.hidden_size)
        self._qkv = rows(chunk, config.qkv_size)
        self._inner = rows(chunk, config.intermediate_size)
        self._last_hidden = rows(last, config.hidden_size)
        self._last_attended = rows(last, config.q_size)
        self._last_inner = rows(last, config.intermediate_size)
        self._last_logits = rows(last, row_floats, torch.float32)
        self.logits = rows(last, row_floats, torch.float32)
        self._attention = PromptAttention(config, shape, self._qkv)
        self._numbers = PieceNumbers(shape, device, is_pinned=False)
        self._inputs = [PieceInputs(shape, self._numbers) for _ in range(MAX_PIECES)]
        self._views = {size: self._views_of(size) for size in piece_sizes(chunk)}
        self._graphs: PieceGraphs | None = None

    def prepare(self) -> None:
        """Graphs, and the quickest attention; on a device, before the first piece."""
        with torch.cuda.stream(self.stream):
            self._attention.prepare()
            self._graphs = PieceGraphs(
                list(self._views), self.num_layers, self._enqueue_part, self.stream
            )
        self.stream.synchronize()

    def has_room(self) -> bool:
        """Whether another piece may begin."""
        return any(not inputs.is_busy for inputs in self._inputs)

    def start(self, chunks: Sequence[PromptChunk]) -> PrefillPiece:
        """A piece whose numbers are in pinned memory; nothing of it is enqueued yet.

        Raises:
            InternalError: it does not fit, or there is no room for another.
        """
        inputs = next((inputs for inputs in self._inputs if not inputs.is_busy), None)
        if inputs is None:
            raise InternalError("too many pieces of prefill at once", limit=MAX_PIECES)
        layout = inputs.fill(chunks)
        inputs.is_busy = True
        return PrefillPiece(self, inputs, layout)

    def layer(self, index: int, layout: PieceLayout) -> None:
        """One block over the piece's rows; of the last one only keys and values."""
        if self._graphs is None:
            self._enqueue_part(index, layout.num_rows)
        else:
            self._graphs.replay(index, layout.num_rows)
        if index + 1 < self.num_layers:
            hidden = self._views[layout.num_rows].hidden
            layer = self._model.weights.layers[index]
            attended = self._attention.attend(layout, self._model.caches[index], layer.heads)
            self._layers.project(attended, layer.output, hidden, hidden)

    def finish(self, layout: PieceLayout) -> None:
        """The last block and the logits, of the last tokens of prompts."""
        num_last = layout.num_last
        if num_last == 0:
            return
        layers, weights, rows = self._layers, self._model.weights, self._numbers.last_rows
        hidden, attended = self._last_hidden[:num_last], self._last_attended[:num_last]
        inner, logits = self._last_inner[:num_last], self._last_logits[:num_last]
        layer = weights.layers[-1]
        wide = self._attention.attend(layout, self._model.caches[-1], layer.heads)
        torch.index_select(wide, 0, rows[:num_last], out=attended)
        torch.index_select(self._hidden, 0, rows[:num_last], out=hidden)
        layers.project(attended, layer.output, hidden, hidden)
        feed_forward(layers, layer.feed_forward, hidden, inner)
        layers.project(hidden, weights.lm_head, logits[:, : self._model.config.vocab_size])
        self.logits.index_copy_(0, self._numbers.logits_slots[:num_last], logits)

    def _enqueue_part(self, index: int, num_rows: int) -> None:
        """What lies before the attention of a layer and behind the output of the one before."""
        layers, views, (_, weights, caches) = self._layers, self._views[num_rows], self._model
        hidden = views.hidden
        if index == 0:
            layers.embed(views.ids, weights.embedding, hidden)
        else:
            before = weights.layers[index - 1]
            feed_forward(layers, before.feed_forward, hidden, views.inner, views.positions)
        layer = weights.layers[index]
        layers.project(hidden, layer.qkv, views.qkv)
        layers.store(views.qkv, caches[index], views.positions, views.places, heads=layer.heads)

    def _views_of(self, num_rows: int) -> _Views:
        numbers = self._numbers
        return _Views(
            hidden=self._hidden[:num_rows],
            qkv=self._qkv[:num_rows],
            inner=self._inner[:num_rows],
            ids=numbers.ids[:num_rows],
            positions=numbers.positions[:num_rows],
            places=numbers.places[:num_rows],
        )
