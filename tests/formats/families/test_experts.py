"""Ways in which folders keep experts: a tensor for each, or one for all of a layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hybridgen.errors import WeightsMismatch
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_model import inspect_gguf
from tests.formats.families.folders import Weights, parse, rewritten
from tests.formats.families.made_model import loaded
from tools.make_tiny_model import make_tiny_model
from tools.tiny_families import TINY_CONFIGS, tiny_config

#: Model type → how its folders name the block, and gate, up and down of an expert.
NAMES = {
    "mixtral": ("block_sparse_moe", ("w1.weight", "w3.weight", "w2.weight")),
    "qwen2_moe": ("mlp", ("gate_proj.weight", "up_proj.weight", "down_proj.weight")),
    "qwen3_moe": ("mlp", ("gate_proj.weight", "up_proj.weight", "down_proj.weight")),
}


def stacked(weights: Weights, model_type: str) -> Weights:
    """As transformers 5 holds them in memory."""
    block, (gate, up, down) = NAMES[model_type]
    keys = TINY_CONFIGS[model_type]
    count = keys.get("num_experts", keys.get("num_local_experts"))
    result = {name: values for name, values in weights.items() if ".experts." not in name}
    for layer in range(2):
        old, new = f"model.layers.{layer}.{block}.", f"model.layers.{layer}.mlp."
        experts = [f"{old}experts.{number}." for number in range(count)]
        result[f"{new}experts.gate_up_proj"] = np.stack(
            [np.concatenate([weights[e + gate], weights[e + up]]) for e in experts]
        )
        result[f"{new}experts.down_proj"] = np.stack([weights[e + down] for e in experts])
        result[f"{new}gate.weight"] = result.pop(f"{old}gate.weight")
    return result


@pytest.mark.parametrize("model_type", NAMES)
def test_stacked_and_separate_experts_are_the_same_model(model_type: str, tmp_path: Path):
    made = make_tiny_model(tmp_path, model_type=model_type)
    folder = rewritten(made.folder, tmp_path / "stacked", lambda w: stacked(w, model_type))
    expected, tensors = loaded(made.folder, tmp_path)
    config, found = loaded(folder, tmp_path)
    assert config == expected
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_a_missing_expert_is_named(tmp_path: Path):
    made = make_tiny_model(tmp_path, model_type="qwen3_moe")
    name = "model.layers.1.mlp.experts.5.up_proj.weight"
    folder = rewritten(
        made.folder,
        tmp_path / "less",
        lambda weights: {key: values for key, values in weights.items() if key != name},
    )
    with pytest.raises(WeightsMismatch) as caught:
        loaded(folder, tmp_path)
    assert caught.value.fields["tensor"] == name
    assert caught.value.fields["limit"] == "[32, 64]"


def test_plain_layers_are_those_that_config_json_names():
    keys = tiny_config(1000, {"model_type": "qwen3_moe", "num_hidden_layers": 6})
    config = parse({**keys, "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert config.experts is not None
    assert config.experts.dense_layers == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("model_type", "changes", "sizes"),
    [
        ("mixtral", {}, (4, 2, 48, 0, True)),
        ("qwen2_moe", {}, (6, 3, 48, 80, False)),
        ("qwen3_moe", {"norm_topk_prob": False}, (8, 2, 32, 0, False)),
    ],
)
def test_experts_are_described(model_type: str, changes: dict[str, bool], sizes: tuple[int, ...]):
    experts = parse(tiny_config(1000, {"model_type": model_type, **changes})).experts
    assert experts is not None
    found = (experts.num_experts, experts.num_chosen, experts.size, experts.shared_size)
    assert (*found, experts.is_share_normalized) == sizes


def test_a_gguf_file_that_says_no_size_is_understood_as_llama_cpp_does(tmp_path: Path):
    made = make_tiny_model(
        tmp_path, model_type="qwen2_moe", intermediate_size=144, shared_expert_intermediate_size=144
    )
    content = made.gguf.read_bytes()
    for key in (b"expert_feed_forward_length", b"expert_shared_feed_forward_length"):
        content = content.replace(b"." + key, b"." + key[::-1])
    made.gguf.write_bytes(content)
    with GgufFile(made.gguf) as gguf:
        assert "qwen2moe.expert_feed_forward_length" not in gguf.metadata
    experts = inspect_gguf(made.gguf).config.experts
    assert experts is not None
    assert (experts.size, experts.shared_size) == (144 // 3, 144)
