"""Weights of GGUF files against transformers' own loader of them.

``from_pretrained(gguf_file=…)`` is a frame around this loader that needs one more package.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import (
    GGUF_SUPPORTED_ARCHITECTURES,
    load_gguf_checkpoint,
)

from tests.formats.families.made_model import Tensors, load_peer, loaded
from tools.make_tiny_model import make_tiny_model
from tools.tiny_families import TINY_CONFIGS
from tools.tiny_gguf import ARCHITECTURES

#: Theirs knows the first two under the name of Llama only, and that without experts.
NOT_KNOWN = {"mistral", "mixtral"} | {
    name
    for name in TINY_CONFIGS
    if not {name, ARCHITECTURES[name]} & set(GGUF_SUPPORTED_ARCHITECTURES)
}


def peer_tensors(path: Path, model: PreTrainedModel) -> Tensors:
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    return {name: torch.as_tensor(values) for name, values in tensors.items()}


@pytest.mark.parametrize("model_type", sorted(TINY_CONFIGS.keys() - NOT_KNOWN))
def test_tiny_files_are_what_transformers_reads(model_type: str, tmp_path: Path):
    made = make_tiny_model(tmp_path, model_type=model_type)
    model = load_peer(made.folder)
    found, expected = peer_tensors(made.gguf, model), model.state_dict()
    missing = expected.keys() - found.keys()
    assert missing <= {"lm_head.weight"}
    for name, tensor in found.items():
        assert torch.allclose(tensor, expected[name], atol=1e-6), name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_weights_are_those_of_transformers(demo_path: Path, tmp_path: Path):
    config, found = loaded(demo_path, tmp_path)
    shape = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(shape)
    expected = peer_tensors(demo_path, model)
    for name, tensor in found.items():
        assert torch.equal(tensor, fused(name, expected)), name
    assert sum(tensor.numel() for tensor in found.values()) == sum(
        tensor.numel() for name, tensor in expected.items() if name != "lm_head.weight"
    )


def fused(name: str, tensors: Tensors) -> torch.Tensor:
    for joined, parts in (("qkv_proj", "qkv"), ("gate_up_proj", ("gate", "up"))):
        if joined in name:
            return torch.cat([tensors[name.replace(joined, f"{p}_proj")] for p in parts])
    return tensors[name]
