"""The device's model in plain torch on the CPU: the same steps without graphs and streams."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch

from hybridgen.models.config import Experts, ModelConfig
from hybridgen.models.cuda.batch_state import BatchState
from hybridgen.models.cuda.decoder import Decoder, batch_buckets
from hybridgen.models.cuda.device_model import DeviceModel
from hybridgen.models.cuda.layers import Layers, TorchLayers
from hybridgen.models.cuda.memory_plan import EngineShape
from hybridgen.models.cuda.prefill import Prefiller
from hybridgen.models.cuda.rope_tables import RopeTables, rope_tables
from hybridgen.models.cuda.weights import _Builder
from hybridgen.models.device_engine import PromptChunk
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.reference import reference_logits
from hybridgen.scheduler.device_row import StateLayout
from tests.models.tiny_model import random_ids, random_tensors, relative_error, tiny_config

CPU = torch.device("cpu")
NUM_BLOCKS = 40


class Model:
    """A tiny model with everything that the engine would build around it."""

    def __init__(
        self,
        max_rows: int = 4,
        max_chunk: int = 64,
        make_layers: Callable[[ModelConfig, RopeTables], Layers] = TorchLayers,
        **changes: object,
    ) -> None:
        self.config = tiny_config(**changes)
        self.tensors = random_tensors(self.config)
        self.shape = EngineShape(max_rows, self.config.max_position, max_chunk, 2, 16, 4)
        weights = _Builder(
            self.config, torch.float32, CPU, lambda name, out: out.copy_(self.tensors[name])
        ).build()
        lead = (NUM_BLOCKS + 1, self.config.num_kv_heads, 16, self.config.head_dim)
        self.caches = [
            PagedCache(torch.full(lead, torch.nan), torch.full(lead, torch.nan))
            for _ in range(self.config.num_layers)
        ]
        model = DeviceModel(self.config, weights, self.caches)
        layers = make_layers(self.config, rope_tables(self.config, self.config.max_position, CPU))
        self.state = BatchState(StateLayout(max_rows, self.shape.table_width), NUM_BLOCKS, CPU)
        self.decoder = Decoder(model, self.state, layers, 112)
        self.prefiller = Prefiller(model, self.shape, layers, 112, None)  # type: ignore[arg-type]

    def logits(self, ids: np.ndarray) -> torch.Tensor:
        return reference_logits(self.config, self.tensors, torch.from_numpy(ids).long())

    def prefill(
        self, ids: np.ndarray, blocks: np.ndarray, cuts: tuple[int, ...], begin: int = 0
    ) -> torch.Tensor:
        for start, stop in pairwise([begin, *cuts, len(ids)]):
            self.run_piece([PromptChunk(ids[start:stop], start, blocks, 1)])
        return self.prefiller.logits[1, : self.config.vocab_size]

    def run_piece(self, chunks: list[PromptChunk]) -> None:
        piece = self.prefiller.start(chunks)
        for _ in range(self.prefiller.num_layers):
            assert not piece.is_done()
            piece.enqueue(1)
        assert piece.is_done()

    def put(self, row: int, position: int, token_id: int, blocks: np.ndarray) -> None:
        state = self.state
        state.positions[row] = position
        state.items[state.layout.origins + row] = -1 - token_id
        state.tables[row, : len(blocks)] = torch.from_numpy(blocks)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_heads": 3, "num_kv_heads": 3, "has_qkv_bias": True, "has_mlp_bias": True},
        {"head_dim": 48, "is_embedding_tied": False, "has_output_bias": True},
        {"experts": Experts(num_experts=6, num_chosen=2, size=40, shared_size=24)},
        {"experts": Experts(num_experts=3, num_chosen=1, size=40, dense_layers=[1])},
    ],
)
def test_prefill_in_pieces_and_decode_equal_the_reference(changes):
    model = Model(**changes)
    texts = [random_ids(model.config, n, seed=n) for n in (37, 5, 18)]
    blocks = [np.asarray(b, np.int32) for b in ([7, 3, 11], [2], [1, 30])]
    for row, (ids, table, cuts) in enumerate(
        zip(texts, blocks, [(20, 21), (), (16,)], strict=True)
    ):
        right = model.logits(ids)
        assert relative_error(model.prefill(ids[:-1], table, cuts), right[-2]) < 1e-5
        model.put(row, len(ids) - 1, int(ids[-1]), table)
    model.decoder.step(4, 1)  # a bucket of four: the last row is idle
    for row, ids in enumerate(texts):
        logits = model.decoder.logits(1)[row, : model.config.vocab_size]
        assert relative_error(logits, model.logits(ids)[-1]) < 1e-5
    assert model.state.positions.tolist() == [37, 5, 18, -1]


def test_rows_take_their_tokens_from_the_rows_that_they_came_from():
    model = Model()
    ids = random_ids(model.config, 9)
    blocks = np.asarray([5], np.int32)
    model.prefill(ids[:8], blocks, ())
    model.put(0, 8, 0, blocks)
    origins = model.state.items[model.state.layout.origins :]
    origins[0] = 2  # it was row 2 of the step before
    model.state.results[2, 0] = int(ids[8])
    model.decoder.step(1, 2)
    assert relative_error(model.decoder.logits(2)[0, :101], model.logits(ids)[-1]) < 1e-5
    assert origins[:4].tolist() == [0, 1, 2, 3]


def test_an_idle_row_harms_no_block_and_stays_idle():
    model = Model()
    model.put(1, 0, 3, np.asarray([4], np.int32))
    before = [pages.clone() for cache in model.decoder._model.caches for pages in cache]
    model.decoder.step(4, 1)
    after = [pages for cache in model.decoder._model.caches for pages in cache]
    for old, new in zip(before, after, strict=True):
        changed = [b for b in range(NUM_BLOCKS) if not torch.equal(old[b].isnan(), new[b].isnan())]
        assert changed == [4]
    assert model.state.positions.tolist() == [-1, 1, -1, -1]


def test_buckets_are_powers_of_two_up_to_the_rows_there_are():
    assert batch_buckets(1) == [1]
    assert batch_buckets(6) == [1, 2, 4, 6]
    assert batch_buckets(256) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
