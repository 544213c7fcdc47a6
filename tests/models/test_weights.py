from __future__ import annotations

import pytest
import torch

from hybridgen.errors import UnsupportedModel, WeightsMismatch
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.layers import gather
from hybridgen.models.weights import check_tensors, pack_weights
from tests.models.tiny_model import full_config, random_tensors, tiny_config


def test_a_missing_tensor_is_named():
    config = tiny_config()
    tensors = random_tensors(config)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(WeightsMismatch, match=r"layers\.1\.mlp\.down_proj") as caught:
        check_tensors(config, tensors)
    assert caught.value.fields["value"] == "missing"


def test_a_tensor_of_another_shape_is_named_with_both_shapes():
    config = tiny_config()
    tensors = random_tensors(config)
    tensors["model.norm.weight"] = torch.ones(97)
    with pytest.raises(WeightsMismatch, match=r"model\.norm") as caught:
        check_tensors(config, tensors)
    assert caught.value.fields["value"] == "[97]"
    assert caught.value.fields["limit"] == "[96]"


def test_a_head_size_that_the_kernels_cannot_do_is_refused():
    config = tiny_config(head_dim=24)
    with pytest.raises(UnsupportedModel, match="multiple of 16"):
        check_tensors(config, random_tensors(config))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_matrix_is_packed_in_the_asked_dtype(dtype, is_tied):
    config = tiny_config(is_embedding_tied=is_tied)
    tensors = random_tensors(config)
    pool = ComputePool(2)
    weights = pack_weights(pool, config, tensors, dtype)
    ids = torch.arange(config.hidden_size, dtype=torch.int32)
    down = gather(pool, weights.layers[1].feed_forward.down, ids)
    assert torch.equal(down, tensors["model.layers.1.mlp.down_proj.weight"].to(dtype).float())
    head = "model.embed_tokens.weight" if is_tied else "lm_head.weight"
    rows = gather(pool, weights.lm_head, ids)
    assert torch.equal(rows, tensors[head][: config.hidden_size].to(dtype).float())
    assert (weights.lm_head is weights.embedding) == is_tied
    pool.close()


def test_packed_weights_do_not_follow_later_changes_of_the_source():
    config = tiny_config()
    tensors = random_tensors(config)
    pool = ComputePool(1)
    weights = pack_weights(pool, config, tensors, torch.float32)
    before = weights.layers[0].attention_norm.clone()
    for tensor in tensors.values():
        tensor.zero_()
    assert torch.equal(weights.layers[0].attention_norm, before)
    ids = torch.arange(3, dtype=torch.int32)
    assert bool(gather(pool, weights.embedding, ids).any())
    pool.close()


def test_the_offset_of_norms_is_added_on_load():
    config = full_config(num_layers=1, layer_windows=[])
    tensors = random_tensors(config)
    pool = ComputePool(1)
    weights = pack_weights(pool, config, tensors, torch.float32)
    layer = weights.layers[0]
    norms = {
        "input_layernorm": layer.attention_norm,
        "post_attention_layernorm": layer.attention_post_norm,
        "pre_feedforward_layernorm": layer.mlp_norm,
        "post_feedforward_layernorm": layer.mlp_post_norm,
        "self_attn.q_norm": layer.q_norm,
        "self_attn.k_norm": layer.k_norm,
    }
    for name, found in norms.items():
        assert torch.equal(found, tensors[f"model.layers.0.{name}.weight"] + 1.0)
    assert torch.equal(weights.final_norm, tensors["model.norm.weight"] + 1.0)
    pool.close()
