from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.formats.gguf_model import inspect_gguf
from tests.formats.families.folders import parse
from tools.make_tiny_model import make_tiny_model
from tools.tiny_families import tiny_config


def test_every_other_layer_has_a_window():
    config = parse(tiny_config(1000, {"model_type": "gemma2", "num_hidden_layers": 4}))
    assert config.layer_windows == [16, 0, 16, 0]
    assert config.kept_window == 0


def test_the_offset_of_the_norms_is_in_the_weights_of_gguf_files(tmp_path: Path):
    made = make_tiny_model(tmp_path, model_type="gemma2")
    assert parse(made.config).norm_offset == 1.0
    assert inspect_gguf(made.gguf).config.norm_offset == 0.0


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        (b"attn_logit_softcapping", "attention_softcap", 50.0),
        (b"final_logit_softcapping", "logit_softcap", 30.0),
        (b"attention.sliding_window", "layer_windows", [4096, 0, 4096]),
    ],
)
def test_a_gguf_file_that_leaves_a_key_out_has_llama_cpps_default(
    key: bytes, field: str, value: object, tmp_path: Path
):
    made = make_tiny_model(tmp_path, model_type="gemma2")
    content = made.gguf.read_bytes()
    made.gguf.write_bytes(content.replace(b"gemma2." + key, b"gemma2." + key[::-1]))
    assert getattr(inspect_gguf(made.gguf).config, field) == value


@pytest.mark.parametrize(("num_layers", "scale"), [(46, (64 / 4) ** -0.5), (45, 0.0)])
def test_gguf_gives_the_largest_model_its_own_scale(num_layers: int, scale: float, tmp_path: Path):
    changes = {"num_hidden_layers": num_layers, "head_dim": 8, "intermediate_size": 16}
    made = make_tiny_model(tmp_path, model_type="gemma2", **changes)
    assert inspect_gguf(made.gguf).config.attention_scale == scale
