"""Whole models by the kernels, decode steps and pieces, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridgen.models.cuda.chunk_attention import ChunkAttention
from hybridgen.models.cuda.triton_layers import TritonLayers
from hybridgen.models.kernels import linear_choice
from tests.models.cuda.test_block_options import OPTIONS
from tests.models.cuda.test_decoder import Model
from tests.models.tiny_model import random_ids, relative_error

SMALL: dict[str, object] = {
    "hidden_size": 48, "intermediate_size": 56, "num_heads": 2, "num_kv_heads": 1,
    "max_position": 64,
}  # fmt: skip


@pytest.mark.parametrize("option", ["partial rotation and norms", "gemma2", "gemma3"])
def test_kernels_equal_the_reference(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkAttention, "_plainly", ChunkAttention._by_kernel)
    monkeypatch.setattr(linear_choice, "MAX_DOT_TOKENS", 4)  # the interpreter is slow
    model = Model(
        max_rows=2,
        max_chunk=16,
        make_layers=lambda config, ropes: TritonLayers(config, ropes, [1, 2, 16], torch.float32),
        **SMALL | OPTIONS[option],
    )
    texts = [random_ids(model.config, n, seed=n) for n in (24, 5)]
    tables = [np.asarray(blocks, np.int32) for blocks in ([7, 3], [2])]
    for row, (ids, table, cuts) in enumerate(zip(texts, tables, [(12,), ()], strict=True)):
        right = model.logits(ids)
        assert relative_error(model.prefill(ids[:-1], table, cuts), right[-2]) < 1e-5
        model.put(row, len(ids) - 1, int(ids[-1]), table)
    model.decoder.step(2, 1)
    for row, ids in enumerate(texts):
        logits = model.decoder.logits(1)[row, : model.config.vocab_size]
        assert relative_error(logits, model.logits(ids)[-1]) < 1e-5
