from __future__ import annotations

import math

from hybridgen.formats.gguf_names import PERMUTED, STANDARD
from hybridgen.formats.huggingface_names import FUSED, SEPARATE, SEPARATE_EXPERTS, STACKED_EXPERTS
from hybridgen.formats.weight_parts import Part, tensor_shapes, weight_parts
from hybridgen.models.config import Experts
from tests.models.tiny_model import tiny_config

LAYER = "model.layers.1."
#: 6 heads of 32 and 2 of keys and of values; hidden 96, inner 120.
PLAIN = tiny_config(has_qkv_bias=True)
MIXED = tiny_config(experts=Experts(num_experts=2, num_chosen=1, size=8, shared_size=24))


def test_separate_projections_stand_below_each_other():
    parts = weight_parts(PLAIN, [SEPARATE], ())
    attention = LAYER + "self_attn."
    assert parts[attention + "qkv_proj.weight"] == (
        Part(attention + "q_proj.weight", (192, 96)),
        Part(attention + "k_proj.weight", (64, 96)),
        Part(attention + "v_proj.weight", (64, 96)),
    )
    assert [part.shape for part in parts[attention + "qkv_proj.bias"]] == [(192,), (64,), (64,)]
    mlp = LAYER + "mlp."
    assert parts[mlp + "gate_up_proj.weight"] == (
        Part(mlp + "gate_proj.weight", (120, 96)),
        Part(mlp + "up_proj.weight", (120, 96)),
    )


def test_parts_make_up_the_fused_shape():
    for config in (PLAIN, MIXED):
        for names in (SEPARATE_EXPERTS, FUSED, PERMUTED):
            for name, members in weight_parts(config, [names], ()).items():
                elements = sum(math.prod(part.taken_shape) for part in members)
                assert elements == math.prod(config.weight_shapes()[name])


def test_only_q_and_k_of_permuted_names_are_interleaved():
    parts = weight_parts(PLAIN, [PERMUTED], ())
    for ending in ("weight", "bias"):
        heads = [p.permuted_heads for p in parts[f"{LAYER}self_attn.qkv_proj.{ending}"]]
        assert heads == [6, 2, 0]
    others = [p for name, group in parts.items() if "qkv" not in name for p in group]
    assert all(part.permuted_heads == 0 for part in others)
    standard = weight_parts(PLAIN, [STANDARD], ())
    assert all(part.permuted_heads == 0 for group in standard.values() for part in group)


def test_experts_come_one_after_the_other_each_with_gate_then_up():
    mlp = LAYER + "mlp.experts."
    separate = weight_parts(MIXED, [SEPARATE_EXPERTS], ())
    assert separate[mlp + "gate_up_proj"] == tuple(
        Part(f"{mlp}{expert}.{kind}_proj.weight", (8, 96))
        for expert in range(2)
        for kind in ("gate", "up")
    )
    gguf = weight_parts(MIXED, [STANDARD], ())
    assert gguf[mlp + "gate_up_proj"] == tuple(
        Part(f"blk.1.ffn_{kind}_exps.weight", (2, 8, 96), expert)
        for expert in range(2)
        for kind in ("gate", "up")
    )
    assert gguf[mlp + "gate_up_proj"][0].taken_shape == (8, 96)
    stacked = weight_parts(MIXED, [STACKED_EXPERTS], ())
    assert [part.expert for part in stacked[mlp + "down_proj"]] == [0, 1]


def test_a_matrix_of_one_row_is_a_vector_in_gguf():
    parts = weight_parts(MIXED, [STANDARD], ())
    (gate,) = parts[LAYER + "mlp.shared_expert_gate.weight"]
    assert gate == Part("blk.1.ffn_gate_inp_shexp.weight", (96,))


def test_the_variant_that_fits_the_file_best_is_taken():
    names = [SEPARATE, SEPARATE.below("language_model.")]
    there = tensor_shapes(weight_parts(PLAIN, names[1:], ()))
    found = weight_parts(PLAIN, names, there)
    assert found[LAYER + "mlp.down_proj.weight"][0].name.startswith("language_model.model.")
    assert (
        tensor_shapes(weight_parts(PLAIN, names, ())).keys()
        == tensor_shapes(weight_parts(PLAIN, names[:1], ())).keys()
    )
