"""Every family from its files to logits, against transformers on the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridgen.formats.families.registry import FAMILIES
from hybridgen.models.config import ModelConfig
from hybridgen.models.reference import reference_logits
from tests.formats.families.made_model import (
    MadeModel,
    Tensors,
    converted,
    loaded,
    made_model,
    random_ids,
)
from tests.models.tiny_model import relative_error, tiny_runner
from tools.tiny_families import TINY_CONFIGS

NUM_TOKENS = 80
LIMIT = 1e-5

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
#: Name → keys of config.json that make it a model whose logits its GGUF file gives too.
ALIKE: dict[str, dict[str, Any]] = {
    **{family: {"model_type": family} for family in TINY_CONFIGS},
    # llama.cpp's converter writes no window of Mistral.
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "phi3": {"model_type": "phi3", "max_position_embeddings": NUM_TOKENS},
    "llama 3.1": {"rope_scaling": LLAMA3},
    "qwen2 yarn": {"model_type": "qwen2", "rope_scaling": YARN, "max_position_embeddings": 256},
}
#: Further variants, of folders only.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral window": {"model_type": "mistral"},
    "qwen2 window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}
    | {"max_window_layers": 1},
    "qwen3 biases": {"model_type": "qwen3", "attention_bias": True},
    "phi3 short": {"model_type": "phi3", "max_position_embeddings": 64},
    "phi3 plain": {"model_type": "phi3", "rope_scaling": None, "sliding_window": None},
    "gemma2 scale": {"model_type": "gemma2", "query_pre_attn_scalar": 24},
    "gemma2 caps off": {"model_type": "gemma2", "attn_logit_softcapping": None}
    | {"final_logit_softcapping": None},
    "gemma3 pattern": {"model_type": "gemma3_text", "sliding_window_pattern": 2},
    "mixtral window": {"model_type": "mixtral", "sliding_window": 8},
    "qwen2_moe dense": {"model_type": "qwen2_moe", "mlp_only_layers": [0]},
    "qwen2_moe normalized": {"model_type": "qwen2_moe", "norm_topk_prob": True},
    "qwen3_moe sparse": {"model_type": "qwen3_moe", "decoder_sparse_step": 2},
    "qwen3_moe window": {"model_type": "qwen3_moe", "use_sliding_window": True}
    | {"sliding_window": 8, "norm_topk_prob": False},
}


@pytest.fixture(scope="module", params=ALIKE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MadeModel:
    return made_model(tmp_path_factory.mktemp("made"), **ALIKE[request.param])


def our_logits(config: ModelConfig, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    return reference_logits(config, tensors, ids, max_positions=len(ids))


@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_logits_equal_those_of_transformers(made: MadeModel, source: str, tmp_path: Path):
    config, tensors = loaded(getattr(made.files, source), tmp_path)
    ids = random_ids(config.vocab_size, NUM_TOKENS)
    assert relative_error(our_logits(config, tensors, ids), made.logits(ids)) < LIMIT


@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_a_converted_model_has_the_same_weights(made: MadeModel, source: str, tmp_path: Path):
    path = getattr(made.files, source)
    config, tensors = loaded(path, tmp_path)
    again, copies = converted(path, tmp_path)
    assert again == config
    assert copies.keys() == tensors.keys()
    assert all(torch.equal(copies[name], tensors[name]) for name in tensors)


def test_the_engine_equals_transformers_for_prompts_of_different_lengths(
    made: MadeModel, tmp_path: Path
):
    config, tensors = loaded(made.files.folder, tmp_path)
    runner = tiny_runner(config, tensors, max_rows=64)
    lengths, num_decoded = (5, 41, 67), 3
    # All as long, since transformers takes longrope's factors by the length of a text.
    texts = [random_ids(config.vocab_size, NUM_TOKENS, seed=n) for n in lengths]
    expected = [made.logits(ids) for ids in texts]
    tables = np.arange(15, dtype=np.int32).reshape(3, 5)
    logits = np.empty((3, config.vocab_size), np.float32)
    for row, (ids, length) in enumerate(zip(texts, lengths, strict=True)):
        for start in range(0, length, 24):
            chunk = ids[start : min(start + 24, length)].numpy().astype(np.int32)
            is_last = start + 24 >= length
            runner.prefill(chunk, start, tables[row], logits[row] if is_last else None)
        assert relative_error(logits[row], expected[row][length - 1]) < LIMIT
    positions = np.array(lengths, np.int32)
    for _ in range(num_decoded):
        ids = [int(text[position]) for text, position in zip(texts, positions, strict=True)]
        runner.decode(np.array(ids, np.int32), positions, tables, logits)
        for row, position in enumerate(positions):
            assert relative_error(logits[row], expected[row][position]) < LIMIT
        positions += 1
    runner.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_equals_transformers(variant: str, tmp_path: Path):
    made = made_model(tmp_path, has_gguf=False, **VARIANTS[variant])
    config, tensors = loaded(made.files.folder, tmp_path)
    ids = random_ids(config.vocab_size, 60)
    assert relative_error(our_logits(config, tensors, ids), made.logits(ids)) < LIMIT


def test_every_family_is_tested():
    model_types = {name for family in FAMILIES for name in family.model_types}
    # The second is the first with its keys in text_config; see test_gemma3.
    assert model_types - TINY_CONFIGS.keys() == {"gemma3"}
