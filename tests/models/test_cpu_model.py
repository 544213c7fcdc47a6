from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.config import Experts, RopeScaling
from hybridgen.models.cpu_model import TokenBatch
from hybridgen.models.reference import reference_logits
from tests.models.peer_models import FAMILIES, LONGROPE, family_peer, llama_peer
from tests.models.test_rope import LLAMA3, YARN, peer_parameters
from tests.models.tiny_model import (
    full_config,
    prompt_logits,
    random_ids,
    random_tensors,
    relative_error,
    tiny_config,
    tiny_runner,
)

CASES = {
    "gqa": tiny_config(),
    "mha": tiny_config(num_heads=4, num_kv_heads=4, head_dim=64),
    "head_dim_96": tiny_config(num_heads=4, num_kv_heads=1, head_dim=96),
    "head_dim_128": tiny_config(num_heads=16, num_kv_heads=1, head_dim=128),
    "untied": tiny_config(is_embedding_tied=False, vocab_size=77),
    "biases": tiny_config(has_qkv_bias=True, has_output_bias=True, has_mlp_bias=True),
    "linear": tiny_config(rope_scaling=RopeScaling(type="linear", factor=2.0)),
    "llama3": tiny_config(rope_scaling=LLAMA3),
    "yarn": tiny_config(rope_scaling=YARN),
    "odd_sizes": tiny_config(
        hidden_size=75, intermediate_size=41, vocab_size=33, num_heads=3, num_kv_heads=1
    ),
}
EXPERTS = Experts(num_experts=6, num_chosen=2, size=40, shared_size=24, dense_layers=[1])
_LOCAL_ROPE = {"rope_base": 1e6, "local_rope_base": 1e4, "layer_windows": [20, 0]}
#: What sets other families apart, alone and together.
OPTIONS = {
    "head_dim_80": tiny_config(num_heads=4, num_kv_heads=2, head_dim=80),
    "head_dim_256": tiny_config(num_heads=4, num_kv_heads=2, head_dim=256),
    "partial_rotation": tiny_config(rotary_dim=12),
    "local_rope": tiny_config(**_LOCAL_ROPE, rope_scaling=RopeScaling(type="linear", factor=8.0)),
    "longrope": tiny_config(rotary_dim=16, rope_scaling=LONGROPE),
    "longrope_within": tiny_config(rotary_dim=16, rope_scaling=LONGROPE, max_position=64),
    "windows": tiny_config(layer_windows=[1, 17]),
    "one_window": tiny_config(layer_windows=[0, 32]),
    "norm_offset": tiny_config(norm_offset=1.0),
    "qk_norm": tiny_config(has_qk_norm=True),
    "offset_qk_norm": tiny_config(has_qk_norm=True, norm_offset=1.0),
    "post_norms": tiny_config(has_post_norms=True),
    "embedding_scale": tiny_config(embedding_scale=96**0.5),
    "attention_scale": tiny_config(attention_scale=0.3),
    "attention_softcap": tiny_config(attention_softcap=0.7),
    "logit_softcap": tiny_config(logit_softcap=20.0),
    "gelu": tiny_config(activation="gelu_tanh"),
    "gelu_biases": tiny_config(activation="gelu_tanh", has_mlp_bias=True, intermediate_size=41),
    "experts": tiny_config(
        num_layers=3,
        experts=Experts(num_experts=7, num_chosen=3, size=40, dense_layers=[1]),
    ),
    "shared_expert": tiny_config(
        has_post_norms=True,
        activation="gelu_tanh",
        experts=Experts(
            num_experts=5, num_chosen=2, size=24, shared_size=72, is_share_normalized=False
        ),
    ),
    "all": full_config(),
    "all_untied": full_config(
        is_embedding_tied=False, hidden_size=75, head_dim=48, experts=EXPERTS
    ),
}
BLOCKS = np.array([5, 0, 9, 3, 7, 1], np.int32)


PEERS = ["gqa", "biases", "linear", "llama3", "yarn"]


@pytest.mark.parametrize("name", PEERS)
def test_logits_equal_those_of_transformers(name):
    config = CASES[name]
    scaling = config.rope_scaling
    peer = llama_peer(config, **({"rope_parameters": peer_parameters(scaling)} if scaling else {}))
    ids = random_ids(config, 90)
    runner = tiny_runner(config, peer.tensors, max_rows=96)
    expected = peer.logits(torch.from_numpy(ids).long())[-1]
    assert relative_error(prompt_logits(runner, ids, BLOCKS), expected) <= 1e-5
    runner.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", CASES | OPTIONS)
def test_logits_equal_the_float64_reference_in_prefill_and_decode(name):
    config = (CASES | OPTIONS)[name]
    tensors = random_tensors(config)
    ids = random_ids(config, 64)
    expected = reference_logits(config, tensors, torch.from_numpy(ids).long())
    runner = tiny_runner(config, tensors)
    assert relative_error(prompt_logits(runner, ids[:45], BLOCKS), expected[44]) < 3e-6
    out = np.empty((1, config.vocab_size), np.float32)
    for position in range(45, 64):
        at = np.array([position], np.int32)
        runner.decode(ids[at], at, BLOCKS[None], out)
        assert relative_error(out[0], expected[position]) < 3e-6
    runner.close()


@pytest.mark.parametrize("name", OPTIONS)
def test_chunks_and_batches_of_different_lengths_equal_the_float64_reference(name):
    config = OPTIONS[name]
    tensors = random_tensors(config)
    runner = tiny_runner(config, tensors)
    lengths = np.array([1, 64, 17, 40], np.int32)
    tables = np.random.default_rng(0).permutation(16).astype(np.int32).reshape(4, 4)
    expected = []
    for seed, (length, table) in enumerate(zip(lengths, tables, strict=True)):
        ids = random_ids(config, length, seed)
        expected.append(reference_logits(config, tensors, torch.from_numpy(ids).long())[-1])
        if length > 1:
            prompt_logits(runner, ids[:-1], table, (5,) if length > 6 else ())
    last = np.array([random_ids(config, n, seed)[-1] for seed, n in enumerate(lengths)], np.int32)
    found = np.empty((4, config.vocab_size), np.float32)
    runner.decode(last, lengths - 1, tables, found)
    assert relative_error(found, torch.stack(expected)) < 3e-6
    runner.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_each_family_equal_those_of_transformers_in_prefill_and_decode(family):
    peer = family_peer(family)
    ids = random_ids(peer.config, 90)
    expected = peer.logits(torch.from_numpy(ids).long())
    runner = tiny_runner(peer.config, peer.tensors, max_rows=96)
    assert relative_error(prompt_logits(runner, ids[:80], BLOCKS, (33,)), expected[79]) < 2e-5
    out = np.empty((1, peer.config.vocab_size), np.float32)
    for position in range(80, 90):
        at = np.array([position], np.int32)
        runner.decode(ids[at], at, BLOCKS[None], out)
    assert relative_error(out[0], expected[89]) < 2e-5
    runner.close()


def test_bfloat16_weights_with_float32_activations_stay_close_to_the_rounded_reference():
    config = tiny_config()
    tensors = random_tensors(config)
    rounded = {
        name: tensor if "norm" in name else tensor.bfloat16() for name, tensor in tensors.items()
    }
    ids = random_ids(config, 50)
    expected = reference_logits(config, rounded, torch.from_numpy(ids).long())[-1]
    runner = tiny_runner(config, tensors, dtype=torch.bfloat16)
    assert relative_error(prompt_logits(runner, ids, BLOCKS), expected) < 5e-3  # the KV's rounding
    runner.close()


def test_a_batch_larger_than_the_work_space_is_refused():
    config = tiny_config()
    runner = tiny_runner(config, random_tensors(config), max_rows=4)
    ids = random_ids(config, 5)
    batch = TokenBatch(ids, np.arange(5, dtype=np.int32), BLOCKS[None], 5, None)
    with pytest.raises(InternalError, match="work space"):
        runner._model.forward(batch)
    runner.close()
