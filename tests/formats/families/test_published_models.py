"""Keys of published config.json files, and the number of parameters that their authors count."""

from __future__ import annotations

from typing import Any

import pytest

from tests.formats.families.folders import parse


def sizes(hidden: int, inner: int, layers: int, heads: int, vocab: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
    }


PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "SmolLM2-135M": (
        134_515_008,
        {
            "model_type": "llama",
            **sizes(576, 1536, 30, 9, 49_152),
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
    "Llama-3.1-8B": (
        8_030_261_248,
        {"model_type": "llama", **sizes(4096, 14_336, 32, 32, 128_256), "num_key_value_heads": 8},
    ),
    "Mistral-7B-v0.1": (
        7_241_732_096,
        {"model_type": "mistral", **sizes(4096, 14_336, 32, 32, 32_000)},
    ),
    "Mixtral-8x7B-v0.1": (
        46_702_792_704,
        {"model_type": "mixtral", **sizes(4096, 14_336, 32, 32, 32_000)},
    ),
    "Qwen2.5-7B": (
        7_615_616_512,
        {"model_type": "qwen2", **sizes(3584, 18_944, 28, 28, 152_064), "num_key_value_heads": 4},
    ),
    "Qwen1.5-MoE-A2.7B": (
        14_315_784_192,
        {
            "model_type": "qwen2_moe",
            **sizes(2048, 5632, 24, 16, 151_936),
            "moe_intermediate_size": 1408,
        },
    ),
    "Qwen3-0.6B": (
        596_049_920,
        {
            "model_type": "qwen3",
            **sizes(1024, 3072, 28, 16, 151_936),
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        {
            "model_type": "qwen3_moe",
            **sizes(2048, 6144, 48, 32, 151_936),
            "num_key_value_heads": 4,
            "head_dim": 128,
        },
    ),
    "Phi-3.5-mini-instruct": (
        3_821_079_552,
        {"model_type": "phi3", **sizes(3072, 8192, 32, 32, 32_064), "num_key_value_heads": 32},
    ),
    "gemma-2-9b": (
        9_241_705_984,
        {"model_type": "gemma2", **sizes(3584, 14_336, 42, 16, 256_000), "num_key_value_heads": 8},
    ),
    "gemma-3-1b": (
        999_885_952,
        {
            "model_type": "gemma3_text",
            **sizes(1152, 6912, 26, 4, 262_144),
            "num_key_value_heads": 1,
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_is_that_of_the_authors(name: str):
    num_parameters, keys = PUBLISHED[name]
    assert parse(keys).num_parameters == num_parameters
