"""The CUDA engine: implements ``DeviceEngine``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from hybridgen.errors import InternalError
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.batch_state import BatchState
from hybridgen.models.cuda.decoder import Decoder
from hybridgen.models.cuda.device_memory import device_memory
from hybridgen.models.cuda.device_model import DeviceModel
from hybridgen.models.cuda.hand_off import RingRegions, choose_hand_off
from hybridgen.models.cuda.layers import Layers
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.cuda.outlet import Outlet
from hybridgen.models.cuda.prefill import Prefiller, PrefillPiece
from hybridgen.models.cuda.rope_tables import RopeTables, rope_tables
from hybridgen.models.cuda.state_writer import ParameterWriter, StateWriter
from hybridgen.models.cuda.streams import is_through, make_stream
from hybridgen.models.cuda.weights import DeviceWeights
from hybridgen.models.device_engine import HandOff, Output, PromptChunk
from hybridgen.models.engine import IntArray
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.scheduler.device_row import StateLayout

_LINE_FLOATS = 16  # rows of the ring are whole cache lines


class CudaEngine:
    """Weights, KV cache, batch state, graphs, and a stream each for decode steps and prefill.

    Args:
        config: shape of the model.
        weights: on the device.
        shape: sizes; the memory plan has found room for them.
        num_blocks: KV blocks; one more is made, for rows that are in no step.
        make_layers: operations for one stream, given the rope tables and whether the stream is
            that of prefill.
        hand_off: ``auto``, ``stream`` or ``host``.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DeviceWeights,
        shape: EngineShape,
        num_blocks: int,
        make_layers: Callable[[RopeTables, bool], Layers],
        *,
        hand_off: str = "auto",
    ) -> None:
        device = weights.embedding.device
        self.num_blocks = num_blocks
        self.block_size = shape.block_size
        self.vocab_size = config.vocab_size
        self.num_logits_slots = shape.num_logits_slots
        self.max_chunk = shape.max_chunk
        self._wanted_hand_off = hand_off
        self._outlet: Outlet | None = None
        # Prefill goes first: the kernels of a decode step follow each other without a gap, and
        # whoever computes prefill beside it bounds how much.
        self.stream = make_stream(device)
        prefill_stream = make_stream(device, priority=-1)
        self._row_floats = -(-config.vocab_size // _LINE_FLOATS) * _LINE_FLOATS
        self.caches = _make_caches(config, shape, num_blocks + 1, weights.embedding)
        ropes = rope_tables(config, shape.max_model_len, device)
        model = DeviceModel(config, weights, self.caches)
        layout = StateLayout(shape.max_rows, shape.table_width)
        self._state = BatchState(layout, num_blocks, device)
        self._writer = StateWriter(self._state.items)
        self._parameter_writer = ParameterWriter(self._state.parameters)
        self._decoder = Decoder(model, self._state, make_layers(ropes, False), self._row_floats)
        self._prefiller = Prefiller(
            model, shape, make_layers(ropes, True), self._row_floats, prefill_stream
        )
        torch.cuda.synchronize(device)
        self._decoder.capture(self.stream)
        self._prefiller.prepare()
        self._warm_up(prefill_stream)

    def connect(self, ring: LogitRing, sampled: SampledRing) -> HandOff:
        """See ``DeviceEngine``."""
        layout = self._state.layout
        if ring.row_floats != self._row_floats or ring.max_rows > layout.max_rows:
            raise InternalError(
                "the ring does not fit the engine",
                value=f"{ring.max_rows} rows of {ring.row_floats}",
                limit=f"{layout.max_rows} rows of {self._row_floats}",
            )
        regions = RingRegions(ring, sampled)
        self._outlet = Outlet(self._decoder, self._prefiller, self._state, regions, self.stream)
        hand_off = choose_hand_off(regions, self.stream, self._wanted_hand_off)
        if hand_off.has_cuts and ring.cut_capacity:
            self._outlet.prepare_cuts()
        return hand_off

    def apply(self, indices: npt.NDArray[np.int64], values: IntArray) -> None:
        """See ``DeviceEngine``."""
        with torch.cuda.stream(self.stream):
            self._writer.write(indices, values, self.stream)

    def set_parameters(self, words: IntArray) -> None:
        """See ``DeviceEngine``."""
        self._parameter_writer.write(words, self.stream)

    def forward(self, num_rows: int, step: int, answered: int) -> None:
        """See ``DeviceEngine``."""
        outlet = self._connected()
        outlet.reserve(step)
        with torch.cuda.stream(self.stream), device_memory("a decode step"):
            self._decoder.replay(num_rows, step, outlet.answers_address(answered))

    def emit(self, step: int, num_decode: int, logits_slots: Sequence[int], output: Output) -> None:
        """See ``DeviceEngine``."""
        outlet = self._connected()
        if not num_decode:
            outlet.reserve(step)
        num_rows = num_decode + len(logits_slots)
        with device_memory("the logits of a step"):
            outlet.collect(step, num_decode, logits_slots)
            if output is Output.ROWS:
                outlet.copy_rows(step, num_rows)
            else:
                outlet.cut(step, num_rows, is_choosing=output is Output.TOKENS)

    def copy_rows_aside(self, step: int, num_rows: int) -> None:
        """See ``DeviceEngine``."""
        self._connected().copy_rows_aside(step, num_rows)

    def prefill(self, chunks: Sequence[PromptChunk]) -> PrefillPiece:
        """See ``DeviceEngine``."""
        return self._prefiller.start(chunks)

    def has_room(self) -> bool:
        """See ``DeviceEngine``."""
        return self._prefiller.has_room()

    def is_quiet(self) -> bool:
        """See ``DeviceEngine``."""
        is_outlet_quiet = self._outlet is None or self._outlet.is_quiet()
        return is_through(self.stream) and is_through(self._prefiller.stream) and is_outlet_quiet

    def close(self) -> None:
        """See ``DeviceEngine``."""
        torch.cuda.synchronize()

    def _connected(self) -> Outlet:
        if self._outlet is None:
            raise InternalError("the engine is not connected to a ring")
        return self._outlet

    def _warm_up(self, stream: torch.cuda.Stream) -> None:
        """Pieces of all kinds that matter: kernels are compiled, libraries and allocator warm.

        Sizes lie on both sides of those at which another kernel is chosen. As many prompts end in
        a piece as there can be; the last piece has two that go on.
        """
        sizes = (self.max_chunk, 100, 65, 64, 63, 33, 32, 17, 16, 9, 8, 5, 4, 3, 2, 1)
        pieces = []
        for num_tokens in (size for size in sizes if size <= self.max_chunk):
            num_chunks = min(num_tokens, self.num_logits_slots)
            length, num_longer = divmod(num_tokens, num_chunks)
            pieces.append([(0, length + (slot < num_longer), slot) for slot in range(num_chunks)])
        pieces.append([(0, 1, -1), (1, 5, 0), (16, 30, -1)])
        for piece in pieces:
            run = self.prefill([self._idle_chunk(*chunk) for chunk in piece])
            while run.advance():
                pass
            stream.synchronize()
            run.is_done()

    def _idle_chunk(self, start: int, stop: int, logits_slot: int) -> PromptChunk:
        """Tokens of a prompt that is nobody's."""
        blocks = np.full(-(-stop // self.block_size), self.num_blocks, np.int32)
        return PromptChunk(np.zeros(stop - start, np.int32), start, blocks, logits_slot)


def _make_caches(
    config: ModelConfig, shape: EngineShape, num_blocks: int, like: torch.Tensor
) -> list[PagedCache]:
    """One per layer; all zeros, so that what was never written is at least finite."""
    lead = (num_blocks, config.num_kv_heads, shape.block_size, config.head_dim)
    return [
        PagedCache(*(torch.zeros(lead, dtype=like.dtype, device=like.device) for _ in range(2)))
        for _ in range(config.num_layers)
    ]
