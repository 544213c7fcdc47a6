"""Pieces of prompts, enqueued layer by layer on a stream of their own."""

from __future__ import annotations

import torch

from hybridgen.models.cuda.device_model import DeviceModel
from hybridgen.models.cuda.layers import Layers
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.cuda.streams import Mark
from hybridgen.models.engine import IntArray
from hybridgen.models.kernels.paged_cache import PagedCache

#: Pieces that may be enqueued: the device goes on with the next while the host looks at the last.
MAX_PIECES = 2


class _Inputs:
    """Pinned and device buffers of one piece's numbers; reused when that piece is through."""

    def __init__(self, shape: EngineShape, device: torch.device) -> None:
        sizes = (shape.max_chunk, shape.max_chunk, shape.table_width)
        self.pinned = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
        self.device = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        chunk = shape.max_chunk
        self.ids, self.positions = self.device[:chunk], self.device[chunk : 2 * chunk]
        self.table = self.device[2 * chunk :]
        self.event = Mark()
        self.is_busy = False


class PrefillPiece:
    """Implements ``PrefillRun``."""

    def __init__(
        self, prefiller: Prefiller, inputs: _Inputs, num_tokens: int, start: int, slot: int
    ) -> None:
        self._prefiller = prefiller
        self._inputs = inputs
        self._num_tokens = num_tokens
        self._start = start
        self._logits_slot = slot
        self._num_layers_out = 0
        self._is_sent = False

    def advance(self) -> bool:
        """See ``PrefillRun``."""
        if self._is_sent:
            return False
        prefiller, inputs = self._prefiller, self._inputs
        with torch.cuda.stream(prefiller.stream):
            if self._num_layers_out == 0:
                prefiller.begin(inputs, self._num_tokens)
            prefiller.layer(self._num_layers_out, inputs, self._num_tokens, self._start)
            self._num_layers_out += 1
            if self._num_layers_out == prefiller.num_layers:
                if self._logits_slot >= 0:
                    prefiller.finish(self._num_tokens, self._logits_slot)
                inputs.event.record(prefiller.stream)
                self._is_sent = True
        return not self._is_sent

    def is_done(self) -> bool:
        """See ``PrefillRun``."""
        if not self._is_sent or not self._inputs.event.is_reached():
            return False
        self._inputs.is_busy = False
        return True


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
        self._shape = shape
        self._layers = layers
        self.stream = stream
        self.num_layers = config.num_layers
        device, dtype = weights.embedding.device, weights.embedding.dtype

        def rows(num_rows: int, size: int) -> torch.Tensor:
            return torch.zeros(num_rows, size, dtype=dtype, device=device)

        chunk = shape.max_chunk
        self._hidden = rows(chunk, config.hidden_size)
        self._qkv = rows(chunk, config.q_size + 2 * config.kv_size)
        self._inner = rows(chunk, config.intermediate_size)
        gathered = shape.table_width * shape.block_size * config.num_kv_heads
        self._keys, self._values = (rows(gathered, config.head_dim).view(-1) for _ in range(2))
        self.logits = torch.zeros(
            shape.num_logits_slots, row_floats, dtype=torch.float32, device=device
        )
        self._inputs = [_Inputs(shape, device) for _ in range(MAX_PIECES)]

    def has_room(self) -> bool:
        """Whether another piece may begin."""
        return any(not inputs.is_busy for inputs in self._inputs)

    def start(self, ids: IntArray, start: int, blocks: IntArray, logits_slot: int) -> PrefillPiece:
        """A piece whose numbers are on their way to the device, and nothing else yet."""
        inputs = next(inputs for inputs in self._inputs if not inputs.is_busy)
        inputs.is_busy = True
        num_tokens, chunk = len(ids), self._shape.max_chunk
        pinned = inputs.pinned.numpy()
        pinned[:num_tokens] = ids
        pinned[chunk : chunk + num_tokens] = range(start, start + num_tokens)
        pinned[2 * chunk : 2 * chunk + len(blocks)] = blocks
        return PrefillPiece(self, inputs, num_tokens, start, logits_slot)

    def begin(self, inputs: _Inputs, num_tokens: int) -> None:
        """Ids, positions and blocks to the device; embedding."""
        inputs.device.copy_(inputs.pinned, non_blocking=True)
        hidden = self._hidden[:num_tokens]
        self._layers.embed(inputs.ids[:num_tokens], self._model.weights.embedding, hidden)

    def layer(self, index: int, inputs: _Inputs, num_tokens: int, start: int) -> None:
        """One block over the piece's tokens."""
        layers, weights, cache = (
            self._layers,
            self._model.weights.layers[index],
            self._model.caches[index],
        )
        hidden, qkv = self._hidden[:num_tokens], self._qkv[:num_tokens]
        positions = inputs.positions[:num_tokens]
        tables = inputs.table.expand(num_tokens, -1)
        layers.project(hidden, weights.qkv, qkv)
        layers.store(qkv, cache, positions, tables)
        attended = self._attend(qkv, cache, inputs, start)
        layers.project(attended, weights.output, hidden, hidden)
        inner = self._inner[:num_tokens]
        layers.project(hidden, weights.gate_up, inner)
        layers.project(inner, weights.down, hidden, hidden)

    def finish(self, num_tokens: int, logits_slot: int) -> None:
        """Logits of the last token."""
        last = self._hidden[num_tokens - 1 : num_tokens]
        out = self.logits[logits_slot : logits_slot + 1, : self._model.config.vocab_size]
        self._layers.project(last, self._model.weights.lm_head, out)

    def _attend(
        self, qkv: torch.Tensor, cache: PagedCache, inputs: _Inputs, start: int
    ) -> torch.Tensor:
        """[num_tokens, q_size], of the piece's queries over everything up to them."""
        config, num_tokens = self._model.config, len(qkv)
        stop = start + num_tokens
        blocks = inputs.table[: -(-stop // cache.block_size)]
        query = qkv[:, : config.q_size].view(1, num_tokens, config.num_heads, config.head_dim)
        keys = _gather(cache.keys, blocks, self._keys)[:, :, :stop]
        values = _gather(cache.values, blocks, self._values)[:, :, :stop]
        attended = causal_attention(query.transpose(1, 2), keys, values)
        return attended.transpose(1, 2).reshape(num_tokens, config.q_size)


def _gather(pages: torch.Tensor, blocks: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
    """[1, num_kv_heads, len(blocks) · block_size, head_dim] of pages, head by head in a row."""
    by_head = pages.transpose(0, 1)
    num_heads, _, block_size, head_dim = by_head.shape
    shape = (num_heads, len(blocks), block_size, head_dim)
    out = space[: num_heads * len(blocks) * block_size * head_dim].view(shape)
    torch.index_select(by_head, 1, blocks, out=out)
    return out.view(1, num_heads, -1, head_dim)


def causal_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of the last n of m positions, each over those up to it.

    Args:
        query: [1, num_heads, n, head_dim].
        keys: [1, num_kv_heads, m, head_dim].
        values: as keys.

    Returns:
        [1, num_heads, n, head_dim]; by torch's flash kernel (Dao 2023) in bf16 and fp16, whose
        causal mask ends at the last query and the last key.
    """
    scale = query.shape[-1] ** -0.5
    if query.is_cuda and query.dtype != torch.float32:
        # torch's front door would put the mask's corner at the first query and the first key.
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        attended: torch.Tensor = flash(query, keys, values, 0.0, True, False, scale=scale)[0]
        return attended
    num_queries, num_keys = query.shape[2], keys.shape[2]
    allowed = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
    allowed = allowed.tril(num_keys - num_queries)
    return torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=allowed, scale=scale, enable_gqa=True
    )
