"""A tiny model as a GGUF file, with the names and metadata that llama.cpp's converter writes.

Names come from the gguf package's own table of Hugging Face names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Config = dict[str, Any]

#: model_type → general.architecture.
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
_EXPERT = re.compile(r"(model\.layers\.\d+\.)(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.")
_MIXTRAL_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


class Vocabulary(NamedTuple):
    """What the tokenizer's keys are made of."""

    tokens: list[str]
    merges: list[str]
    special_tokens: tuple[str, ...]
    chat_template: str


def write_gguf(
    path: Path, config: Config, weights: dict[str, Floats], vocabulary: Vocabulary
) -> None:
    """Write ``weights`` (Hugging Face names) as F32."""
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map

    architecture = ARCHITECTURES[config["model_type"]]
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    _add_shape(writer, config)
    _add_variant(writer, config)
    _add_vocabulary(writer, config, vocabulary)
    numbers = {name: number for number, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(MODEL_ARCH(numbers[architecture]), config["num_hidden_layers"])
    for name, values in _stored(config, weights):
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), values)
    for name, factors in _rope_factors(config).items():
        writer.add_tensor(name, np.asarray(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(rows: Floats, num_heads: int) -> Floats:
    """Rotate-half rows → GGUF's order for Llama: per head, row i of each half at 2i and 2i + 1."""
    head_dim = rows.shape[0] // num_heads
    order = [
        head * head_dim + half * (head_dim // 2) + index
        for head in range(num_heads)
        for index in range(head_dim // 2)
        for half in range(2)
    ]
    return np.ascontiguousarray(rows[order])


def _add_shape(writer: Any, config: Config) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rotated = int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(rotated)


def _add_variant(writer: Any, config: Config) -> None:
    """Keys that only some families have."""
    from gguf import RopeScalingType

    family = config["model_type"]
    if family.startswith(("gemma", "phi3")):
        writer.add_sliding_window(config["sliding_window"])
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if family == "gemma3_text":
        writer.add_float32("gemma3.rope.freq_base_swa", config["rope_local_base_freq"])
    if family == "phi3":
        original = config["original_max_position_embeddings"]
        stretch = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    experts = config.get("num_experts", config.get("num_local_experts", 0))
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        shared = config["shared_expert_intermediate_size"]
        writer.add_expert_shared_feed_forward_length(shared)


def _add_vocabulary(writer: Any, config: Config, vocabulary: Vocabulary) -> None:
    special = vocabulary.special_tokens
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types([3 if token in special else 1 for token in vocabulary.tokens])
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary.chat_template)


def _stored(config: Config, weights: dict[str, Floats]) -> Iterator[tuple[str, Floats]]:
    """Name and values of each tensor: permuted, shifted, squeezed or stacked as the format asks."""
    stacks: dict[str, list[Floats]] = {}
    is_permuted = ARCHITECTURES[config["model_type"]] == "llama"
    for name, values in weights.items():
        expert = _EXPERT.match(name)
        if expert is not None:
            module = _MIXTRAL_NAMES.get(expert[3], expert[3])
            stacks.setdefault(f"{expert[1]}mlp.experts.{module}.weight", []).append(values)
        elif is_permuted and ".q_proj." in name:
            yield name, interleaved(values, config["num_attention_heads"])
        elif is_permuted and ".k_proj." in name:
            yield name, interleaved(values, config["num_key_value_heads"])
        elif config["model_type"].startswith("gemma") and name.endswith("norm.weight"):
            yield name, values + 1
        else:
            yield name, values.squeeze()
    for name, members in stacks.items():
        yield name, np.stack(members)


def _rope_factors(config: Config) -> dict[str, list[float]]:
    """Tensors that hold what the format has no keys for."""
    scaling = config.get("rope_scaling") or {}
    if "long_factor" in scaling:
        return {
            "rope_factors_long.weight": scaling["long_factor"],
            "rope_factors_short.weight": scaling["short_factor"],
        }
    if scaling.get("rope_type") == "llama3":
        return {"rope_freqs.weight": _llama3_factors(config, scaling)}
    return {}


def _llama3_factors(config: Config, scaling: Config) -> list[float]:
    """Divisors of the frequencies: 1 for short waves, the factor for long ones."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for index in range(0, config["head_dim"], 2):
        wave = 2 * math.pi * config["rope_theta"] ** (index / config["head_dim"])
        turns = scaling["original_max_position_embeddings"] / wave
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / (share + (1 - share) / scaling["factor"]))
    return factors
