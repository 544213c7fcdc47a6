from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hybridgen.errors import BadModelFile, UnsupportedModel, WeightsMismatch
from hybridgen.formats.gguf_model import inspect_gguf
from tests.formats.families.folders import Weights, parse, rewritten
from tests.formats.families.made_model import loaded
from tools.make_tiny_model import TinyModel, make_tiny_model

BASE: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
}


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("gemma3"), model_type="gemma3_text")


def with_images(keys: dict[str, Any]) -> dict[str, Any]:
    shared = {key: keys.pop(key) for key in ("bos_token_id", "eos_token_id")}
    return {"model_type": "gemma3", "text_config": keys, "vision_config": {}, **shared}


def under(prefix: str, weights: Weights) -> Weights:
    vision = weights["model.norm.weight"]
    return {
        **{name.replace("model.", prefix, 1): values for name, values in weights.items()},
        "vision_tower.vision_model.post_layernorm.weight": vision,
        "multi_modal_projector.mm_soft_emb_norm.weight": vision,
    }


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", "model.language_model."])
def test_the_text_of_a_model_with_images_is_read(
    prefix: str, text_model: TinyModel, tmp_path: Path
):
    folder = rewritten(
        text_model.folder, tmp_path / "hf", lambda weights: under(prefix, weights), with_images
    )
    expected, tensors = loaded(text_model.folder, tmp_path)
    config, found = loaded(folder, tmp_path)
    assert config == expected
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_text_tensors_of_other_names_are_refused_by_name(text_model: TinyModel, tmp_path: Path):
    folder = rewritten(
        text_model.folder, tmp_path / "hf", lambda weights: under("decoder.", weights), with_images
    )
    with pytest.raises(WeightsMismatch, match=r"model\.embed_tokens\.weight is missing"):
        loaded(folder, tmp_path)


def test_a_mistake_is_named_as_the_folder_names_it(text_model: TinyModel, tmp_path: Path):
    def cut(weights: Weights) -> Weights:
        name = "language_model.model.layers.3.self_attn.k_proj.weight"
        renamed = under("language_model.model.", weights)
        return {**renamed, name: renamed[name][:8].copy()}

    folder = rewritten(text_model.folder, tmp_path / "hf", cut, with_images)
    with pytest.raises(WeightsMismatch) as caught:
        loaded(folder, tmp_path)
    fields = caught.value.fields
    assert fields["tensor"] == "language_model.model.layers.3.self_attn.k_proj.weight"
    assert (fields["value"], fields["limit"]) == ("[8, 64]", "[32, 64]")


def test_five_layers_of_six_have_the_window_and_its_rope():
    config = parse({**BASE, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert config.layer_windows == [4096] * 5 + [0, 4096]
    assert (config.rope_base, config.local_rope_base) == (1e6, 1e4)
    assert [config.has_local_rope(layer) for layer in (0, 5)] == [True, False]


def test_rope_parameters_by_layer_type_are_understood():
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    config = parse({**BASE, "rope_parameters": rope})
    assert (config.rope_base, config.local_rope_base) == (5e5, 2e4)
    assert config.rope_scaling is not None
    assert (config.rope_scaling.type, config.rope_scaling.factor) == ("linear", 8.0)
    rope["sliding_attention"]["rope_type"] = "yarn"
    with pytest.raises(UnsupportedModel, match="sliding_attention"):
        parse({**BASE, "rope_parameters": rope})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": None}, "vocab_size"),
        ({"vocab_size": 2**30}, "vocab_size"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ({"text_config": 3}, "text_config"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters"),
    ],
)
def test_an_impossible_key_is_named(changes: dict[str, Any], named: str):
    with pytest.raises(BadModelFile) as caught:
        parse({**BASE, **changes})
    assert named in str(caught.value.fields["field"])


def test_the_published_text_config_leaves_most_out():
    # Of google/gemma-3-4b-it.
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = parse({"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 106]})
    assert (config.vocab_size, config.max_position) == (262_208, 131_072)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.eos_ids, config.is_embedding_tied) == ([1, 106], True)
    assert config.attention_scale == 256**-0.5
    assert config.layer_windows.count(0) == 5


def test_quantized_models_with_images_are_refused():
    config = {"model_type": "gemma3", "text_config": BASE, "quantization_config": {"bits": 4}}
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        parse(config)


@pytest.mark.parametrize(("num_layers", "scale"), [(62, (64 / 4) ** -0.5), (61, 0.0)])
def test_gguf_gives_the_largest_model_its_own_scale(num_layers: int, scale: float, tmp_path: Path):
    made = make_tiny_model(
        tmp_path,
        model_type="gemma3_text",
        num_hidden_layers=num_layers,
        head_dim=8,
        hidden_size=64,
        intermediate_size=16,
    )
    assert inspect_gguf(made.gguf).config.attention_scale == scale
