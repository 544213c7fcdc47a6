from __future__ import annotations

import math

import msgspec
import pytest

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.models.config import ModelConfig, RopeScaling

SMOL = ModelConfig(
    architecture="llama",
    vocab_size=49_152,
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=8192,
    is_embedding_tied=True,
)


def changed(**changes: object) -> ModelConfig:
    return msgspec.structs.replace(SMOL, **changes)


def test_sizes_follow_from_the_heads():
    assert (SMOL.q_size, SMOL.kv_size, SMOL.num_kv_groups) == (576, 192, 3)
    assert SMOL.kv_bytes_per_token(2) == 2 * 30 * 192 * 2


def test_smollm2_has_its_published_number_of_parameters():
    assert SMOL.num_parameters == 134_515_008


def test_a_tied_embedding_is_one_tensor():
    assert "lm_head.weight" not in SMOL.weight_shapes()
    untied = changed(is_embedding_tied=False)
    assert untied.weight_shapes()["lm_head.weight"] == (49_152, 576)
    assert untied.num_parameters - SMOL.num_parameters == 49_152 * 576


def test_each_bias_flag_adds_its_tensors():
    def extra(**flags: bool) -> set[str]:
        names = changed(num_layers=1, **flags).weight_shapes().keys()
        return {name.removeprefix("model.layers.0.") for name in names if name.endswith("bias")}

    assert extra() == set()
    assert extra(has_qkv_bias=True) == {f"self_attn.{k}_proj.bias" for k in "qkv"}
    assert extra(has_output_bias=True) == {"self_attn.o_proj.bias"}
    assert extra(has_mlp_bias=True) == {f"mlp.{k}_proj.bias" for k in ("gate", "up", "down")}


def test_shapes_are_those_of_transformers_llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    theirs = LlamaConfig(
        vocab_size=100,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        state = LlamaForCausalLM(theirs).state_dict()
    ours = changed(
        vocab_size=100,
        hidden_size=24,
        intermediate_size=40,
        num_layers=2,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        is_embedding_tied=False,
    )
    assert ours.weight_shapes() == {name: tuple(value.shape) for name, value in state.items()}


def test_a_sound_configuration_validates():
    for architecture in ("llama", "mistral", "qwen2"):
        changed(architecture=architecture, eos_ids=[2, 0], bos_id=1).validate("here")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", 2**31),
        ("num_layers", 0),
        ("num_layers", 2**32),
        ("hidden_size", -1),
        ("intermediate_size", 2**40),
        ("num_heads", 0),
        ("num_kv_heads", 0),
        ("num_kv_heads", 2),
        ("head_dim", 0),
        ("head_dim", 63),
        ("max_position", 0),
        ("rope_base", 0.0),
        ("rope_base", math.nan),
        ("rms_norm_eps", math.inf),
        ("rms_norm_eps", -1e-5),
        ("eos_ids", list(range(17))),
        ("eos_ids", [49_152]),
        ("bos_id", -1),
    ],
)
def test_an_impossible_number_is_named(field: str, value: object):
    with pytest.raises(BadModelFile) as caught:
        changed(**{field: value}).validate("some/file")
    assert field in str(caught.value.fields["field"])
    assert caught.value.fields["file"] == "some/file"
    assert "limit" in caught.value.fields


def test_an_unknown_architecture_is_unsupported_and_says_what_is():
    with pytest.raises(UnsupportedModel) as caught:
        changed(architecture="gpt_bigcode").validate("file")
    assert caught.value.fields["value"] == "gpt_bigcode"
    assert "llama" in str(caught.value.fields["limit"])


@pytest.mark.parametrize(
    "scaling",
    [
        RopeScaling(type="linear", factor=0.0),
        RopeScaling(type="linear", factor=math.nan),
        RopeScaling(type="llama3", factor=8.0),
        RopeScaling(
            type="llama3",
            factor=8.0,
            original_max_position=8192,
            low_freq_factor=4.0,
            high_freq_factor=4.0,
        ),
        RopeScaling(type="yarn", factor=4.0),
        RopeScaling(
            type="yarn", factor=4.0, original_max_position=4096, beta_fast=1.0, beta_slow=2.0
        ),
        RopeScaling(type="yarn", factor=4.0, original_max_position=4096, attention_factor=math.inf),
        RopeScaling(type="factors", freq_factors=[1.0]),
        RopeScaling(type="factors", freq_factors=[0.0] * 32),
    ],
)
def test_impossible_rope_scaling_is_refused(scaling: RopeScaling):
    with pytest.raises(BadModelFile, match="rope"):
        changed(rope_scaling=scaling).validate("file")


def test_yarn_works_its_attention_factor_out():
    yarn = RopeScaling(type="yarn", factor=4.0, original_max_position=4096)
    assert yarn.effective_attention_factor == pytest.approx(0.1 * math.log(4.0) + 1.0)
    given = msgspec.structs.replace(yarn, attention_factor=1.5)
    assert given.effective_attention_factor == 1.5
    assert RopeScaling(type="linear", factor=4.0).effective_attention_factor == 1.0


def test_it_survives_json():
    config = changed(rope_scaling=RopeScaling(type="factors", freq_factors=[1.0, 2.5] * 16))
    assert msgspec.json.decode(msgspec.json.encode(config), type=ModelConfig) == config
