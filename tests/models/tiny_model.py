"""Small random models for tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.config import ModelConfig, RopeScaling
from hybridgen.models.cpu_model import CpuModel
from hybridgen.models.kv_cache import KvCache
from hybridgen.models.runner import Runner
from hybridgen.models.weights import pack_weights


def tiny_config(**changes: object) -> ModelConfig:
    settings: dict[str, object] = {
        "architecture": "llama",
        "vocab_size": 101,
        "num_layers": 2,
        "hidden_size": 96,
        "intermediate_size": 120,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 32,
        "max_position": 256,
        "is_embedding_tied": True,
    }
    return ModelConfig(**{**settings, **changes})


def full_config(**changes: object) -> ModelConfig:
    """Every option of the block at once, experts apart."""
    return tiny_config(
        **{
            "num_layers": 3,
            "rope_base": 1e6,
            "rope_scaling": RopeScaling(type="linear", factor=2.0),
            "rotary_dim": 16,
            "local_rope_base": 1e4,
            "layer_windows": [24, 0, 40],
            "norm_offset": 1.0,
            "has_qk_norm": True,
            "has_post_norms": True,
            "embedding_scale": 2.5,
            "attention_scale": 0.4,
            "attention_softcap": 2.0,
            "logit_softcap": 20.0,
            "has_qkv_bias": True,
            "has_output_bias": True,
            "has_mlp_bias": True,
            "activation": "gelu_tanh",
            **changes,
        }
    )


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights that keep activations near 1; norms and biases are not trivial."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: random_weight(name, shape, generator, config.norm_offset)
        for name, shape in config.weight_shapes().items()
    }


def random_weight(
    name: str, shape: tuple[int, ...], generator: torch.Generator, norm_offset: float
) -> torch.Tensor:
    values = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 - norm_offset + 0.2 * values
    if name.endswith("bias"):
        return 0.5 * values
    return values if "embed" in name else values * shape[-1] ** -0.5


def tiny_runner(
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    num_blocks: int = 40,
    max_rows: int = 64,
    num_threads: int = 1,
) -> Runner:
    pool = ComputePool(num_threads)
    model = CpuModel(
        config,
        pack_weights(pool, config, tensors, dtype),
        KvCache(config, num_blocks, dtype),
        pool,
        max_rows=max_rows,
        max_positions=config.max_position,
    )
    return Runner(model)


def random_ids(config: ModelConfig, num_tokens: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, config.vocab_size, num_tokens, dtype=np.int32)


def prompt_logits(
    runner: Runner, ids: np.ndarray, blocks: np.ndarray, cuts: tuple[int, ...] = ()
) -> np.ndarray:
    """Logits after ``ids``, prefilled in chunks that end at ``cuts``."""
    out = np.full(runner.vocab_size, np.nan, np.float32)
    edges = [0, *cuts, len(ids)]
    for start, end in pairwise(edges):
        runner.prefill(ids[start:end], start, blocks, out if end == len(ids) else None)
    return out


def relative_error(found: np.ndarray | torch.Tensor, expected: np.ndarray | torch.Tensor) -> float:
    """Largest difference over the largest expected magnitude."""
    found, expected = torch.as_tensor(found).double(), torch.as_tensor(expected).double()
    return float((found - expected).abs().max() / expected.abs().max())
