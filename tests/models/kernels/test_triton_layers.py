from __future__ import annotations

import pytest
import torch

from hybridgen.models.cuda.int8_rows import quantize_rows
from hybridgen.models.cuda.layers import Projection, TorchLayers
from hybridgen.models.cuda.rope_tables import RopeTables
from hybridgen.models.cuda.triton_layers import TritonLayers
from hybridgen.models.kernels import linear_choice
from tests.models.kernels.oracles import relative_error
from tests.models.tiny_model import tiny_config

CONFIG = tiny_config(hidden_size=64, intermediate_size=48, num_heads=2, num_kv_heads=1)
ROPE = (torch.ones(4, 16), torch.zeros(4, 16))
ROPES = RopeTables(ROPE, ROPE)


def projection(num_rows: int, *, is_int8: bool, is_gated: bool) -> Projection:
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(num_rows, 64, generator=generator) / 8
    scales = None
    if is_int8:
        values, scales = torch.empty(num_rows, 64, dtype=torch.int8), torch.empty(num_rows)
        quantize_rows(weight, values, scales)
        weight = values
    norm = torch.rand(64, generator=generator) + 0.5
    return Projection(weight, scales, is_gated=is_gated, norm=norm)


@pytest.mark.parametrize("num_rows", [1, 3, 6])  # by each of the three ways
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("is_gated", [False, True])
def test_projections_equal_those_of_plain_torch(
    num_rows: int, is_int8: bool, is_gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_DOT_TOKENS", "MAX_INT8_DOT_TOKENS"):
        monkeypatch.setattr(linear_choice, limit, 4)
    weights = projection(96, is_int8=is_int8, is_gated=is_gated)
    x = torch.randn(num_rows, 64, generator=torch.Generator().manual_seed(num_rows))
    out, wanted = (torch.full((num_rows, 48 if is_gated else 96), torch.nan) for _ in range(2))
    layers = TritonLayers(CONFIG, ROPES, [1, 4, 6], torch.float32, is_int8=is_int8)
    layers.project(x, weights, out)
    TorchLayers(CONFIG, ROPES).project(x, weights, wanted)
    assert relative_error(out, wanted.double()) < 1e-6
