"""What a decode step has to read."""

from __future__ import annotations

import math

from hybridgen.formats.model_info import ModelInfo
from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.memory_plan import bytes_of_weights


def step_bytes(info: ModelInfo, batch: int, context: int, *, is_int8: bool = False) -> int:
    """What a decode step must read: all weights but the embedding, and every row's KV.

    Of experts those that somebody chooses, if all are as likely.
    """
    config = info.config
    weights = bytes_of_weights(config, 2, is_int8=is_int8)
    if is_int8 or not config.is_embedding_tied:  # else it is the output matrix, too
        weights -= 2 * config.vocab_size * config.hidden_size
    if config.experts is not None:
        idle = (1 - config.experts.num_chosen / config.experts.num_experts) ** batch
        weights -= int(idle * num_expert_weights(config) * (1 if is_int8 else 2))
    return weights + batch * context * config.kv_bytes_per_token(2)


def num_expert_weights(config: ModelConfig) -> int:
    """Weights of which a token takes a part."""
    shapes = config.weight_shapes().items()
    return sum(math.prod(shape) for name, shape in shapes if ".mlp.experts." in name)
