from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.families.registry import huggingface_config_of
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def parse(config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    here = Path("config.json")
    return huggingface_config_of(JsonFile(here, config), JsonFile(here, generation or {}))


def saved_by_transformers(name: str, folder: Path, **keys: Any) -> tuple[Any, dict[str, Any]]:
    import transformers

    theirs = getattr(transformers, name)(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        **keys,
    )
    theirs.save_pretrained(folder)
    return theirs, json.loads((folder / "config.json").read_text(encoding="utf-8"))


ROPES: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
        "rope_theta": 500_000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 1_000_000.0,
    },
}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("name", ["LlamaConfig", "MistralConfig", "Qwen2Config"])
def test_what_transformers_saves_is_understood(name: str, rope: str, tmp_path: Path):
    theirs, saved = saved_by_transformers(
        name,
        tmp_path,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_parameters=dict(ROPES[rope]),
        tie_word_embeddings=True,
    )
    ours = parse(saved)
    assert ours.architecture == theirs.model_type
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == 16
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.max_position == 2048
    assert ours.is_embedding_tied is True
    assert ours.rope_base == ROPES[rope]["rope_theta"]
    assert ours.has_qkv_bias is (name == "Qwen2Config")
    if rope == "none":
        assert ours.rope_scaling is None
        return
    assert ours.rope_scaling is not None
    assert ours.rope_scaling.type == rope
    assert ours.rope_scaling.factor == ROPES[rope]["factor"]
    original = theirs.rope_parameters.get("original_max_position_embeddings")
    if original is not None:
        assert ours.rope_scaling.original_max_position == original


@pytest.mark.parametrize("extra", [{}, {"mscale": 1.2, "mscale_all_dim": 0.8}])
def test_yarns_attention_factor_is_that_of_transformers(extra: dict[str, float], tmp_path: Path):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {**ROPES["yarn"], **extra}
    theirs, saved = saved_by_transformers(
        "LlamaConfig", tmp_path, max_position_embeddings=2048, rope_parameters=rope
    )
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    scaling = parse(saved).rope_scaling
    assert scaling is not None
    assert scaling.effective_attention_factor == pytest.approx(factor)


def test_the_older_spelling_of_rope_is_understood():
    scaling = {
        "type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = parse({**BASE, "rope_theta": 500_000.0, "rope_scaling": scaling})
    assert config.rope_base == 500_000.0
    assert config.rope_scaling is not None
    assert (config.rope_scaling.type, config.rope_scaling.factor) == ("llama3", 32.0)
    assert parse({**BASE, "rope_scaling": None}).rope_scaling is None


def test_yarn_over_the_trained_length_gives_the_stretched_context():
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    keys = {**BASE, "model_type": "qwen2", "max_position_embeddings": 32_768}
    assert parse({**keys, "rope_scaling": scaling}).max_position == 131_072


def test_a_sliding_window_gives_every_layer_one():
    keys = {**BASE, "model_type": "mistral", "num_key_value_heads": 2}
    assert parse({**keys, "sliding_window": 1024}).layer_windows == [1024, 1024]
    assert parse({**keys, "sliding_window": 1024}).max_position == 131_072
    assert parse(keys).layer_windows == [4096, 4096]  # the architecture's default
    assert parse({**keys, "sliding_window": None}).layer_windows == []


def test_layer_types_say_which_layers_have_a_window():
    types = ["full_attention", "sliding_attention"]
    keys = {**BASE, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 64}
    assert parse({**keys, "layer_types": types}).layer_windows == [0, 64]
    with pytest.raises(UnsupportedModel, match="layer_types"):
        parse({**keys, "layer_types": ["chunked_attention", "full_attention"]})
    with pytest.raises(BadModelFile, match="layer_windows"):
        parse({**keys, "layer_types": types[1:]})


def test_qwens_window_is_used_if_asked_for_and_in_the_last_layers_only():
    keys = {**BASE, "model_type": "qwen2", "sliding_window": 64, "max_window_layers": 1}
    assert parse(keys).layer_windows == []
    assert parse({**keys, "use_sliding_window": True}).layer_windows == [0, 64]


def test_the_longropes_factors_must_be_numbers():
    rope = {"type": "longrope", "factor": 2.0, "long_factor": [1.0], "short_factor": ["one"]}
    with pytest.raises(BadModelFile, match="short_factor"):
        parse({**BASE, "rope_scaling": rope})


def test_end_ids_join_generation_config_and_config():
    config = parse({**BASE, "eos_token_id": [7, 2], "bos_token_id": 1}, {"eos_token_id": [2, 9]})
    assert config.eos_ids == [2, 9, 7]
    assert config.bos_id == 1
    assert parse({**BASE, "eos_token_id": None}).eos_ids == []


def test_biases_follow_the_flags():
    config = parse({**BASE, "attention_bias": True, "mlp_bias": True})
    assert (config.has_qkv_bias, config.has_output_bias, config.has_mlp_bias) == (True, True, True)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"type": "proportional", "factor": 2.0}}, "rope_type"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_a_variant_that_is_not_implemented_is_named(changes: dict[str, Any], named: str):
    with pytest.raises(UnsupportedModel) as caught:
        parse({**BASE, **changes})
    assert named in str(caught.value.fields["field"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": None}, "vocab_size"),
        ({"vocab_size": "1000"}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"eos_token_id": 1000}, "eos_ids"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ],
)
def test_an_impossible_key_is_named(changes: dict[str, Any], named: str):
    with pytest.raises(BadModelFile) as caught:
        parse({**BASE, **changes})
    assert named in str(caught.value.fields["field"])
