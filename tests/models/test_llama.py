from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hybridgen.errors import InternalError
from hybridgen.models.config import ModelConfig, RopeScaling
from hybridgen.models.llama import TokenBatch
from hybridgen.models.reference import llama_logits
from tests.models.test_rope import LLAMA3, YARN, peer_parameters
from tests.models.tiny_model import (
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
BLOCKS = np.array([5, 0, 9, 3, 7, 1], np.int32)


def peer_model(config: ModelConfig, tensors: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    scaling = config.rope_scaling
    peer = LlamaConfig(
        vocab_size=config.vocab_size,
        num_hidden_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.is_embedding_tied,
        attention_bias=config.has_qkv_bias,
        mlp_bias=config.has_mlp_bias,
        rope_parameters=peer_parameters(scaling)
        if scaling
        else {"rope_type": "default", "rope_theta": config.rope_base},
        pad_token_id=None,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(peer).eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name):
    config = CASES[name]
    tensors = random_tensors(config)
    ids = random_ids(config, 90)
    runner = tiny_runner(config, tensors, max_rows=96)
    with torch.no_grad():
        expected = peer_model(config, tensors)(torch.from_numpy(ids)[None].long()).logits[0, -1]
    assert relative_error(prompt_logits(runner, ids, BLOCKS), expected) <= 1e-5
    runner.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_float64_reference_in_prefill_and_decode(name):
    config = CASES[name]
    tensors = random_tensors(config)
    ids = random_ids(config, 70)
    expected = llama_logits(config, tensors, torch.from_numpy(ids).long())
    runner = tiny_runner(config, tensors)
    assert relative_error(prompt_logits(runner, ids[:40], BLOCKS), expected[39]) < 3e-6
    out = np.empty((1, config.vocab_size), np.float32)
    for position in range(40, 70):
        at = np.array([position], np.int32)
        runner.decode(ids[at], at, BLOCKS[None], out)
        assert relative_error(out[0], expected[position]) < 3e-6
    runner.close()


def test_bfloat16_weights_with_float32_activations_stay_close_to_the_rounded_reference():
    config = tiny_config()
    tensors = random_tensors(config)
    rounded = {
        name: tensor if "norm" in name else tensor.bfloat16() for name, tensor in tensors.items()
    }
    ids = random_ids(config, 50)
    expected = llama_logits(config, rounded, torch.from_numpy(ids).long())[-1]
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
