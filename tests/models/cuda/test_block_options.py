"""What sets families apart, each alone and all together: pieces and decode steps in plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridgen.errors import UnsupportedModel
from hybridgen.models.config import RopeScaling
from hybridgen.models.cuda import prompt_attention
from hybridgen.models.cuda.attention_calls import FlashCalls
from hybridgen.models.cuda.chunk_attention import chunk_runs
from hybridgen.models.cuda.load import check_model
from hybridgen.models.cuda.piece_inputs import Continued, PieceLayout
from hybridgen.models.cuda.weights import load_device_weights, random_device_weights
from hybridgen.models.device_engine import PromptChunk
from hybridgen.models.kernels.head_options import HeadOptions
from hybridgen.models.weight_names import LM_HEAD
from tests.models.cuda.test_decoder import CPU, Model
from tests.models.tiny_model import random_ids, random_tensors, relative_error, tiny_config

LONGROPE = RopeScaling(
    type="longrope", factor=4.0, original_max_position=64, attention_factor=1.1,
    freq_factors=[1.0 + 0.2 * i for i in range(12)],
    short_factors=[1.0 + 0.1 * i for i in range(12)],
)  # fmt: skip
GEMMA2: dict[str, object] = {
    "norm_offset": 1.0, "has_post_norms": True, "embedding_scale": 96**0.5,
    "attention_scale": 0.15, "attention_softcap": 5.0, "logit_softcap": 3.0,
    "activation": "gelu_tanh", "layer_windows": [20, 0],
}  # fmt: skip
GEMMA3: dict[str, object] = {
    "num_layers": 2, "norm_offset": 1.0, "has_qk_norm": True, "has_post_norms": True,
    "embedding_scale": 96**0.5, "activation": "gelu_tanh", "layer_windows": [9, 0],
    "rope_base": 1e6, "local_rope_base": 1e4,
    "rope_scaling": RopeScaling(type="linear", factor=8.0),
}  # fmt: skip
OPTIONS: dict[str, dict[str, object]] = {
    "gelu": {"activation": "gelu_tanh", "has_mlp_bias": True},
    "norm offset": {"norm_offset": 1.0},
    "q and k norm": {"has_qk_norm": True, "has_qkv_bias": True},
    "post norms": {"has_post_norms": True, "has_output_bias": True},
    "embedding scale": {"embedding_scale": 9.5},
    "attention scale": {"attention_scale": 0.3},
    "attention cap": {"attention_softcap": 2.0},
    "logit cap": {"logit_softcap": 2.0, "is_embedding_tied": False},
    "window": {"layer_windows": [7, 7]},
    "window of one": {"layer_windows": [1, 16]},
    "window beyond the context": {"layer_windows": [256, 1000]},
    "local rope": {"layer_windows": [11, 0], "local_rope_base": 100.0},
    "partial rotation": {"rotary_dim": 8},
    "partial rotation and norms": {"head_dim": 80, "rotary_dim": 32, "has_qk_norm": True},
    "longrope": {"head_dim": 32, "rotary_dim": 24, "rope_scaling": LONGROPE},
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
}


@pytest.mark.parametrize("option", OPTIONS)
def test_prefill_in_pieces_and_decode_equal_the_reference(option):
    model = Model(**OPTIONS[option])
    texts = [random_ids(model.config, n, seed=n) for n in (53, 5, 34)]
    blocks = [np.asarray(b, np.int32) for b in ([7, 3, 11, 20], [2], [1, 30, 9])]
    for row, (ids, table, cuts) in enumerate(
        zip(texts, blocks, [(20, 21), (), (16,)], strict=True)
    ):
        right = model.logits(ids)
        assert relative_error(model.prefill(ids[:-1], table, cuts), right[-2]) < 1e-5
        model.put(row, len(ids) - 1, int(ids[-1]), table)
    model.decoder.step(4, 1)  # a bucket of four: the last row is idle
    for row, ids in enumerate(texts):
        logits = model.decoder.logits(1)[row, : model.config.vocab_size]
        assert relative_error(logits, model.logits(ids)[-1]) < 1e-5


@pytest.mark.parametrize(
    ("continued", "runs"),
    [
        ([], [(0, 4, 0)]),
        ([0], [(0, 1, 0), (1, 4, 5)]),
        ([1, 2], [(0, 1, 0), (1, 2, 5), (2, 3, 8), (3, 4, 10)]),
        ([3], [(0, 3, 0), (3, 4, 10)]),
    ],
)
def test_chunks_that_begin_their_prompts_share_a_call(continued, runs):
    blocks = torch.zeros(1, dtype=torch.int32)
    past = [Continued(number, slice(0), 16, blocks) for number in continued]
    layout = PieceLayout(17, [5, 3, 2, 7], blocks, past, 0)
    found = list(chunk_runs(layout))
    assert [(run.chunks.start, run.chunks.stop, run.first_row) for run in found] == runs
    assert [run.past.number for run in found if run.past is not None] == continued


def test_layers_that_the_libraries_can_do_stay_with_them():
    model = Model(max_position=100)
    attention = model.prefiller._attention._by_chunk
    for heads in (HeadOptions(), HeadOptions(window=100), HeadOptions(scale=3.0, is_local=True)):
        assert not attention.is_for(heads)
    for heads in (HeadOptions(window=99), HeadOptions(softcap=1.0)):
        assert attention.is_for(heads)


@pytest.mark.parametrize(
    ("changes", "is_asked"),
    [({}, True), ({"layer_windows": [7, 0]}, True), ({"layer_windows": [7, 9]}, False),
     ({"attention_softcap": 2.0}, False)],
)  # fmt: skip
def test_cudnn_makes_plans_only_for_models_that_will_call_it(changes, is_asked, monkeypatch):
    asked = []
    monkeypatch.setattr(prompt_attention, "try_cudnn", lambda *_, **__: asked.append(True))
    attention = Model(**changes).prefiller._attention
    attention.calls = FlashCalls(1.0)
    attention.prepare()
    assert asked == [True] * is_asked


def test_heads_that_no_kernel_of_the_device_takes_are_refused():
    check_model(tiny_config(head_dim=256))
    with pytest.raises(UnsupportedModel, match="too large for a CUDA device"):
        check_model(tiny_config(head_dim=272))


def test_a_piece_of_new_and_continued_prompts_keeps_their_windows_apart():
    model = Model(layer_windows=[7, 0])
    lengths = [30, 21, 9, 40]
    prompts = [random_ids(model.config, n, seed=n) for n in lengths]
    tables = [np.asarray(b, np.int32) for b in ([0, 5], [9, 1], [4], [8, 2, 3])]
    model.run_piece([PromptChunk(prompts[0][:17], 0, tables[0])])
    model.run_piece([PromptChunk(prompts[3][:32], 0, tables[3])])
    model.run_piece(
        [
            PromptChunk(prompts[2], 0, tables[2]),
            PromptChunk(prompts[0][17:], 17, tables[0], 1),
            PromptChunk(prompts[1][:20], 0, tables[1]),
            PromptChunk(prompts[3][32:], 32, tables[3], 0),
        ]
    )
    logits = model.prefiller.logits[:, : model.config.vocab_size]
    assert relative_error(logits[1], model.logits(prompts[0])[-1]) < 1e-5
    assert relative_error(logits[0], model.logits(prompts[3])[-1]) < 1e-5


def test_blocks_before_every_window_may_be_anyones():
    model = Model(layer_windows=[20, 20])
    ids, table = random_ids(model.config, 60), np.asarray([7, 3, 11, 20], np.int32)
    model.prefill(ids[:52], table, (30,))
    for cache in model.caches:
        for pages in cache:
            pages[[7, 3]] = torch.nan
    right = model.logits(ids)
    assert relative_error(model.prefill(ids[:-1], table, (), 52), right[-2]) < 1e-5
    model.put(0, 59, int(ids[-1]), table)
    model.decoder.step(1, 0)
    assert relative_error(model.decoder.logits(0)[0, :101], right[-1]) < 1e-5


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_norms_are_float32_and_hold_the_offset(stored):
    config = tiny_config(norm_offset=1.0, has_qk_norm=True, has_post_norms=True)
    tensors = {name: x.to(stored) for name, x in random_tensors(config).items()}
    weights = load_device_weights(config, tensors, torch.bfloat16, CPU, lambda _: None)
    layer, prefix = weights.layers[1], "model.layers.1."
    found = {
        "input_layernorm": layer.qkv.norm,
        "self_attn.q_norm": layer.heads.q_norm,
        "self_attn.k_norm": layer.heads.k_norm,
        "post_attention_layernorm": layer.output.post_norm,
        "pre_feedforward_layernorm": layer.feed_forward.gate_up.norm,
        "post_feedforward_layernorm": layer.feed_forward.down.post_norm,
    }
    for name, norm in found.items():
        assert norm is not None
        assert norm.dtype == torch.float32
        assert torch.equal(norm, tensors[f"{prefix}{name}.weight"].float() + 1.0)


def test_random_models_have_norms_of_one_whatever_is_added():
    config = tiny_config(norm_offset=1.0, has_post_norms=True, is_embedding_tied=False)
    weights = random_device_weights(config, torch.float32, CPU)
    assert weights.layers[0].feed_forward.down.post_norm is not None
    assert (weights.layers[0].feed_forward.down.post_norm == 1.0).all()
    assert weights.lm_head.norm is not None
    assert (weights.lm_head.norm == 1.0).all()
    assert LM_HEAD in config.weight_shapes()
