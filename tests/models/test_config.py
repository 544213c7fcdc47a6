from __future__ import annotations

import math

import msgspec
import pytest

from hybridgen.errors import BadModelFile
from hybridgen.models.config import Experts, ModelConfig, RopeScaling
from tests.models.peer_models import FAMILIES, family_peer

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
    assert extra(has_qkv_bias=True) == {"self_attn.qkv_proj.bias"}
    assert extra(has_output_bias=True) == {"self_attn.o_proj.bias"}
    assert extra(has_mlp_bias=True) == {"mlp.gate_up_proj.bias", "mlp.down_proj.bias"}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_the_weights_of_transformers_and_no_others(family):
    peer = family_peer(family)
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.tensors.items()}
    assert peer.config.weight_shapes() == shapes
    assert peer.config.num_parameters == sum(p.numel() for p in peer.model.parameters())


def test_windows_say_which_positions_are_kept_and_which_rope_a_layer_has():
    alternating = changed(num_layers=3, layer_windows=[16, 0, 16], local_rope_base=1e4)
    assert [alternating.window(layer) for layer in range(3)] == [16, 0, 16]
    assert [alternating.has_local_rope(layer) for layer in range(3)] == [True, False, True]
    assert alternating.kept_window == 0
    assert changed(num_layers=2, layer_windows=[16, 32]).kept_window == 32
    assert (SMOL.window(0), SMOL.kept_window, SMOL.has_local_rope(0)) == (0, 0, False)


def test_layers_without_experts_have_a_plain_block():
    experts = Experts(num_experts=4, num_chosen=2, size=8, shared_size=16, dense_layers=[0])
    config = changed(num_layers=2, experts=experts)
    assert [config.has_experts(layer) for layer in range(2)] == [False, True]
    shapes = config.weight_shapes()
    assert shapes["model.layers.0.mlp.gate_up_proj.weight"] == (2 * 1536, 576)
    assert shapes["model.layers.1.mlp.experts.gate_up_proj"] == (4, 16, 576)
    assert shapes["model.layers.1.mlp.shared_expert.down_proj.weight"] == (576, 16)
    assert "model.layers.1.mlp.gate_up_proj.weight" not in shapes


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
        ("rope_base", 1.0),
        ("rope_base", math.nan),
        ("rms_norm_eps", math.inf),
        ("rms_norm_eps", -1e-5),
        ("eos_ids", list(range(17))),
        ("eos_ids", [49_152]),
        ("bos_id", -1),
        ("rotary_dim", 66),
        ("rotary_dim", 31),
        ("local_rope_base", -1.0),
        ("layer_windows", [16]),
        ("layer_windows", [-1] * 30),
        ("norm_offset", math.nan),
        ("embedding_scale", 0.0),
        ("attention_scale", -1.0),
        ("attention_softcap", math.inf),
        ("logit_softcap", -1.0),
    ],
)
def test_an_impossible_number_is_named(field: str, value: object):
    with pytest.raises(BadModelFile) as caught:
        changed(**{field: value}).validate("some/file")
    assert field in str(caught.value.fields["field"])
    assert caught.value.fields["file"] == "some/file"
    assert "limit" in caught.value.fields


@pytest.mark.parametrize(
    ("field", "experts"),
    [
        ("num_experts", Experts(num_experts=0, num_chosen=1, size=8)),
        ("num_chosen", Experts(num_experts=4, num_chosen=5, size=8)),
        ("num_chosen", Experts(num_experts=4, num_chosen=0, size=8)),
        ("num_chosen", Experts(num_experts=400, num_chosen=65, size=8)),
        ("num_experts", Experts(num_experts=4000, num_chosen=1, size=8)),
        ("size", Experts(num_experts=4, num_chosen=2, size=0)),
        ("shared_size", Experts(num_experts=4, num_chosen=2, size=8, shared_size=-1)),
        ("dense_layers", Experts(num_experts=4, num_chosen=2, size=8, dense_layers=[30])),
    ],
)
def test_impossible_experts_are_refused(field: str, experts: Experts):
    with pytest.raises(BadModelFile) as caught:
        changed(experts=experts).validate("file")
    assert field in str(caught.value.fields["field"])


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
        RopeScaling(type="longrope", original_max_position=1, factor=2.0),
        RopeScaling(type="longrope", original_max_position=64, freq_factors=[1.0] * 32),
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


def test_longrope_works_its_attention_factor_out():
    long = RopeScaling(type="longrope", factor=32.0, original_max_position=4096)
    expected = math.sqrt(1 + math.log(32.0) / math.log(4096))
    assert long.effective_attention_factor == pytest.approx(expected)
    within = msgspec.structs.replace(long, factor=1.0)
    assert within.effective_attention_factor == 1.0


def test_it_survives_json():
    config = changed(
        rope_scaling=RopeScaling(type="factors", freq_factors=[1.0, 2.5] * 16),
        layer_windows=[16] * 30,
        experts=Experts(num_experts=4, num_chosen=2, size=8),
    )
    assert msgspec.json.decode(msgspec.json.encode(config), type=ModelConfig) == config
