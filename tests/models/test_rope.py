from __future__ import annotations

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hybridgen.models.config import RopeScaling
from hybridgen.models.rope import build_rope_table, rope_frequencies
from tests.models.peer_models import LONGROPE, family_peer
from tests.models.tiny_model import tiny_config

LLAMA3 = RopeScaling(
    type="llama3", factor=8.0, original_max_position=64, low_freq_factor=1.0, high_freq_factor=4.0
)
YARN = RopeScaling(type="yarn", factor=4.0, original_max_position=64)
YARN_PLAIN = RopeScaling(
    type="yarn", factor=4.0, original_max_position=64, is_truncated=False, attention_factor=1.5
)


def peer_parameters(scaling: RopeScaling) -> dict[str, object]:
    parameters: dict[str, object] = {
        "rope_type": scaling.type,
        "rope_theta": 10_000.0,
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_position,
    }
    if scaling.type == "llama3":
        parameters["low_freq_factor"] = scaling.low_freq_factor
        parameters["high_freq_factor"] = scaling.high_freq_factor
    if scaling.type == "yarn":
        parameters["truncate"] = scaling.is_truncated
        if scaling.attention_factor is not None:
            parameters["attention_factor"] = scaling.attention_factor
    return parameters


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
@pytest.mark.parametrize(
    "scaling", [RopeScaling(type="linear", factor=3.0), LLAMA3, YARN, YARN_PLAIN]
)
def test_frequencies_and_factor_are_those_of_transformers(scaling, head_dim):
    peer = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=256,
        rope_parameters=peer_parameters(scaling),
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling.type](peer, "cpu")
    config = tiny_config(head_dim=head_dim, rope_scaling=scaling)
    np.testing.assert_allclose(rope_frequencies(config, 256), expected.numpy(), rtol=1e-5)
    assert scaling.effective_attention_factor == pytest.approx(factor)


@pytest.mark.parametrize("num_positions", [64, 65])
def test_longrope_frequencies_and_factor_are_those_of_transformers(num_positions):
    peer = family_peer("phi3_longrope").model.config
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](peer, "cpu", seq_len=num_positions)
    config = tiny_config(rotary_dim=16, rope_scaling=LONGROPE)
    np.testing.assert_allclose(rope_frequencies(config, num_positions), expected, rtol=1e-5)
    assert LONGROPE.effective_attention_factor == pytest.approx(factor)
    table = build_rope_table(config, num_positions)
    assert table.cosines[0, 0] == pytest.approx(factor)


def test_partial_rotation_has_the_frequencies_of_a_smaller_head():
    partial = rope_frequencies(tiny_config(head_dim=64, rotary_dim=16), 256)
    assert np.array_equal(partial, rope_frequencies(tiny_config(head_dim=16), 256))


def test_layers_with_a_window_have_their_own_base_and_no_scaling():
    config = tiny_config(rope_base=1e6, local_rope_base=1e4, rope_scaling=YARN_PLAIN)
    local = build_rope_table(config, 40, is_local=True)
    plain = build_rope_table(tiny_config(rope_base=1e4), 40)
    assert np.array_equal(local.cosines, plain.cosines)
    assert np.array_equal(local.sines, plain.sines)


def test_without_scaling_the_table_is_cos_and_sin_of_position_times_frequency():
    table = build_rope_table(tiny_config(head_dim=16), 5)
    assert table.cosines.shape == table.sines.shape == (5, 8)
    angle = 4 * 10_000.0 ** (-6 / 16)
    assert table.cosines[4, 3] == np.float32(np.cos(angle))
    assert table.sines[4, 3] == np.float32(np.sin(angle))


def test_dynamic_scaling_changes_nothing_within_the_context():
    scaled = tiny_config(rope_scaling=RopeScaling(type="dynamic", factor=4.0))
    assert np.array_equal(rope_frequencies(scaled, 256), rope_frequencies(tiny_config(), 256))


def test_factors_divide_each_frequency():
    factors = [float(i + 1) for i in range(16)]
    scaling = RopeScaling(type="factors", freq_factors=factors)
    found = rope_frequencies(tiny_config(rope_scaling=scaling), 256)
    np.testing.assert_allclose(found * factors, rope_frequencies(tiny_config(), 256))


def test_yarn_scales_both_tables():
    plain = tiny_config(rope_scaling=YARN)
    scaled = tiny_config(rope_scaling=YARN_PLAIN)
    assert build_rope_table(plain, 1).cosines[0, 0] == pytest.approx(0.1 * np.log(4) + 1)
    assert build_rope_table(scaled, 1).cosines[0, 0] == pytest.approx(1.5)
