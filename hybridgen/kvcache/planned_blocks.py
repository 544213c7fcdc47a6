"""How many KV blocks a configuration asks for."""

from __future__ import annotations

from hybridgen.config import Config

#: A KV cache that was not sized holds this many tokens for each sequence of a full batch.
DEFAULT_TOKENS_PER_SEQ = 1024


def planned_blocks(config: Config, *, max_model_len: int, bytes_per_token: int) -> int:
    """Blocks asked for: as a number, as bytes, or else enough for usual loads.

    Args:
        config: a number counts before bytes; with neither, the cache holds
            ``DEFAULT_TOKENS_PER_SEQ`` for each of max_num_seqs sequences, and in any case one
            whole context.
        max_model_len: context length in tokens.
        bytes_per_token: keys and values of one token over all layers.
    """
    device = config.device
    if device.num_kv_blocks:
        return device.num_kv_blocks
    if device.kv_cache_memory:
        return device.kv_cache_memory // (device.block_size * bytes_per_token)
    num_tokens = max(config.scheduler.max_num_seqs * DEFAULT_TOKENS_PER_SEQ, max_model_len)
    return -(-num_tokens // device.block_size)
