"""How many kernels a decode step launches: options of other families cost a Llama nothing."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from hybridgen.models.cuda.triton_layers import TritonLayers
from tests.models.cuda.test_block_options import GEMMA2, GEMMA3
from tests.models.cuda.test_decoder import Model

LAYER = ["gemv_kernel", "decode_attention_kernel", *["gemv_kernel"] * 3]
NORM = "_norm_kernel"
POST_NORMED = [*LAYER[:3], NORM, *LAYER[3:], NORM]


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({}, LAYER),
        ({"has_qk_norm": True, "rotary_dim": 8, "layer_windows": [5, 0]}, LAYER),
        (GEMMA2, POST_NORMED),
        (GEMMA3, POST_NORMED),
    ],
)
def test_a_step_launches_no_kernel_that_its_model_does_not_need(
    changes: dict[str, object], layer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(
        max_rows=1,
        make_layers=lambda config, ropes: TritonLayers(config, ropes, [1, 64], torch.float32),
        **changes,  # type: ignore[arg-type]
    )
    launched: list[str] = []
    monkeypatch.setattr(
        GridExecutor, "__call__", lambda self, *_, **__: launched.append(self.fn.__name__)
    )
    model.decoder.step(1, 0)
    assert launched == ["_embedding_kernel", *layer, *layer, "gemv_kernel"]
