from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.gguf_model import inspect_gguf
from tests.formats.families.folders import parse
from tools.make_tiny_model import make_tiny_model
from tools.tiny_families import tiny_config

LONGROPE = {"type": "longrope", "long_factor": [2.0] * 8, "short_factor": [1.0] * 8}


def phi3(**changes: Any) -> dict[str, Any]:
    keys = tiny_config(1000, {"model_type": "phi3"})
    return {**keys, "partial_rotary_factor": 1.0, "rope_scaling": LONGROPE, **changes}


def test_the_default_attention_factor_is_that_of_the_paper():
    scaling = parse(phi3()).rope_scaling
    assert scaling is not None
    assert (scaling.factor, scaling.original_max_position) == (8.0, 64)
    expected = math.sqrt(1 + math.log(8) / math.log(64))
    assert scaling.effective_attention_factor == pytest.approx(expected)
    given = parse(phi3(rope_scaling={**LONGROPE, "attention_factor": 1.5})).rope_scaling
    assert given is not None
    assert given.effective_attention_factor == 1.5


def test_the_first_name_of_longrope_is_understood():
    scaling = parse(phi3(rope_scaling={**LONGROPE, "type": "su"})).rope_scaling
    assert scaling is not None
    assert scaling.type == "longrope"


def test_a_part_of_each_head_is_rotated():
    assert parse(phi3()).rotary_dim == 0
    factors = {"long_factor": [1.0] * 4, "short_factor": [1.0] * 4}
    keys = phi3(partial_rotary_factor=0.5, rope_scaling={**LONGROPE, **factors})
    assert parse(keys).rotary_dim == 8
    with pytest.raises(BadModelFile, match="freq_factors"):
        parse(phi3(partial_rotary_factor=0.5))


def test_another_rope_scaling_is_refused():
    with pytest.raises(UnsupportedModel, match="rope_type"):
        parse(phi3(rope_scaling={"rope_type": "linear", "factor": 2.0}))


def test_the_window_is_that_of_all_layers():
    assert parse(phi3(sliding_window=2047)).layer_windows == [2047, 2047]
    assert parse(phi3(sliding_window=None)).layer_windows == []


def test_gguf_keeps_longrope_in_tensors(tmp_path: Path):
    made = make_tiny_model(tmp_path, model_type="phi3")
    config = inspect_gguf(made.gguf).config
    scaling, factors = config.rope_scaling, made.config["rope_scaling"]
    assert scaling is not None
    assert (scaling.type, scaling.original_max_position) == ("longrope", 64)
    assert scaling.freq_factors == factors["long_factor"]
    assert scaling.short_factors == factors["short_factor"]
    assert (config.rotary_dim, config.layer_windows) == (8, [24, 24])


def test_gguf_without_the_short_factors_is_refused(tmp_path: Path):
    made = make_tiny_model(tmp_path, model_type="phi3")
    content = made.gguf.read_bytes()
    made.gguf.write_bytes(content.replace(b"rope_factors_short", b"rope_factors_shirt"))
    with pytest.raises(BadModelFile, match="rope_factors_short"):
        inspect_gguf(made.gguf)
